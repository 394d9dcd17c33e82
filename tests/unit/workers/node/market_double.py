"""A market of a few dozen lines on a real socket, with the answers of the real one."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from workers.protocol.errands import ErrandResult
from workers.protocol.job_spec import BaseModelRef, BlobRef
from workers.protocol.joining import PATH_JOIN_STEP, JoinStepReport
from workers.protocol.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinModelsReply,
    JoinReply,
    JoinRequest,
    SlotPlan,
)
from workers.protocol.plan_queue import (
    PATH_NEXT_PLAN,
    PATH_PLAN_SESSION,
    PATH_TOKEN,
    SUPERSEDED,
    NextPlanReply,
    NextPlanRequest,
    NodeToken,
    PlanSession,
)
from workers.protocol.reports import ProgressReply, ProgressReport, SliceResult
from workers.protocol.turns import PATH_TURN, DeviceTurn, DeviceTurnRequest
from workers.protocol.wire import from_json, to_json

TINY = BaseModelRef(name="tiny", source="bundled:finetender-tiny")


@dataclass
class Lease:
    expires_at: float
    last_seq: int = 0
    events: list[Any] = field(default_factory=list)
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    adapter: bytes | None = None
    result: SliceResult | None = None
    lost: bool = False
    checkpoint_and_stop: bool = False
    #: Seconds a report prolongs it by.
    renew_s: float = 30.0


class MarketDouble:
    """Serves the internal API over HTTP; everything it saw is there to look at."""

    def __init__(self, *, token: str = "node-token") -> None:
        self.token = token
        self.leases: dict[str, Lease] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.heartbeats: list[Heartbeat] = []
        self.joins: list[JoinRequest] = []
        self.join_steps: list[JoinStepReport] = []
        #: Names of nodes that the market has.
        self.names_taken: set[str] = set()
        #: Answers to errands, by token.
        self.errand_results: dict[str, ErrandResult] = {}
        self.heartbeat_reply = HeartbeatReply()
        self.turn = DeviceTurn()
        self.turn_requests: list[DeviceTurnRequest] = []
        self.plan: SlotPlan | None = None
        self.plan_requests: list[NextPlanRequest] = []
        self.session = ""
        self.rotate_token = False
        #: How often the waits of nodes were ended before their time.
        self.waits_ended = 0
        self.join_token = "join-token"
        self.join_reply = JoinReply(
            node_id="node_1",
            api_token=token,
            heartbeat_every_s=0.2,
            base_models=(TINY,),
        )
        #: Called with method and path before anything else; a number it returns is the
        #: answer's status, ``"drop"`` closes the connection.
        self.trouble: Callable[[str, str], int | str | None] = lambda _method, _path: None
        #: Seconds its clock is ahead of ours.
        self.clock_ahead_s = 0.0
        #: Notified at every request, for tests that wait.
        self.changed = threading.Condition()
        double = self

        class Handler(_Handler):
            market = double

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self.end_waits()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def blob(self, content: bytes, *, url: str | None = None) -> BlobRef:
        digest = hashlib.sha256(content).hexdigest()
        url = url or f"/blobs/{digest}"
        self.blobs[url] = content
        return BlobRef(url=url, sha256=digest, bytes=len(content))

    def send(self, plan: SlotPlan) -> None:
        """Make this the node's newest plan."""
        with self.changed:
            self.plan = plan
            self.changed.notify_all()

    def end_waits(self) -> None:
        """Answer the nodes that wait for plans, as a market that restarts does."""
        with self.changed:
            self.waits_ended += 1
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], Any], *, timeout_s: float = 30.0) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, timeout_s):
                raise AssertionError("the market never saw what the test waits for")


class _Handler(BaseHTTPRequestHandler):
    market: MarketDouble
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.market.clock_ahead_s)

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_GET(self) -> None:
        self._serve("GET")

    def handle_one_request(self) -> None:
        # Clients that are closed in the middle of a request are part of the tests.
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _serve(self, method: str) -> None:
        body = self._body()
        trouble = self.market.trouble(method, self.path)
        if trouble == "drop":
            self.close_connection = True
            self.connection.close()
            return
        with self.market.changed:
            self.market.requests.append((method, self.path, dict(self.headers)))
            if isinstance(trouble, int):
                self._problem(trouble, "trouble")
            else:
                self._route(method, body)
            self.market.changed.notify_all()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _route(self, method: str, body: bytes) -> None:
        market, path = self.market, self.path
        if path == "/internal/v1/join/models":
            if json.loads(body)["token"] != market.join_token:
                return self._problem(403, "unknown_join_token")
            return self._answer(JoinModelsReply(market.join_reply.base_models))
        if path == PATH_JOIN_STEP:
            market.join_steps.append(from_json(JoinStepReport, json.loads(body)))
            return self._answer({})
        if path == "/internal/v1/join":
            asked = from_json(JoinRequest, json.loads(body))
            if asked.name in market.names_taken:
                return self._problem(409, "node_name_taken")
            market.joins.append(asked)
            return self._answer(market.join_reply)
        if self.headers.get("Authorization") != f"Bearer {market.token}":
            return self._problem(401, "unknown_node")
        if path.startswith("/internal/v1/errands/"):
            market.errand_results[path.split("/")[4]] = from_json(ErrandResult, json.loads(body))
            return self._answer({})
        if path == "/internal/v1/heartbeat":
            market.heartbeats.append(from_json(Heartbeat, json.loads(body)))
            return self._answer(market.heartbeat_reply)
        if path == PATH_TURN:
            market.turn_requests.append(from_json(DeviceTurnRequest, json.loads(body)))
            return self._answer(market.turn)
        if path == PATH_PLAN_SESSION:
            market.session = f"session-{len(market.requests)}"
            return self._answer(PlanSession(market.session))
        if path == PATH_NEXT_PLAN:
            return self._next_plan(from_json(NextPlanRequest, json.loads(body)))
        if path == PATH_TOKEN:
            market.token, market.rotate_token = f"{market.token}-next", False
            return self._answer(NodeToken(market.token))
        if path == "/internal/v1/progress":
            return self._progress(from_json(ProgressReport, json.loads(body)))
        if path == "/internal/v1/result":
            result = from_json(SliceResult, json.loads(body))
            lease = self._lease(result.lease_token)
            if lease is None:
                return self._problem(410, "lease_lost")
            lease.result = result
            return self._answer({})
        if method == "PUT":
            return self._file(body)
        if path in market.blobs:
            return self._blob(market.blobs[path])
        return self._problem(404, "not_found")

    def _next_plan(self, request: NextPlanRequest) -> None:
        market, token = self.market, self.headers.get("Authorization")
        market.plan_requests.append(request)
        ended = market.waits_ended
        market.changed.notify_all()

        def is_news() -> bool:
            return (
                market.waits_ended > ended
                or market.rotate_token
                or token != f"Bearer {market.token}"
                or request.session != market.session
                or self._newer(request) is not None
            )

        market.changed.wait_for(is_news, min(request.wait_s, 25.0))
        if token != f"Bearer {market.token}":
            return self._problem(401, "unknown_node")
        if request.session != market.session:
            return self._problem(409, SUPERSEDED)
        plan = self._newer(request)
        if plan is None:
            return self._answer(NextPlanReply(rotate_token=market.rotate_token))
        return self._answer(NextPlanReply(to_json(plan), plan.slot, plan.revision))

    def _newer(self, request: NextPlanRequest) -> SlotPlan | None:
        plan = self.market.plan
        held = (request.held_slot or -1, request.held_revision)
        return None if plan is None or (plan.slot, plan.revision) <= held else plan

    def _lease(self, token: str) -> Lease | None:
        lease = self.market.leases.get(token)
        return None if lease is None or lease.lost or lease.result is not None else lease

    def _progress(self, report: ProgressReport) -> None:
        lease = self._lease(report.lease_token)
        if lease is None:
            return self._answer(ProgressReply(keep_running=False))
        for event in report.events:
            if event.seq > lease.last_seq:
                lease.events.append(event)
                lease.last_seq = event.seq
        lease.expires_at = max(lease.expires_at, time.time() + lease.renew_s)
        return self._answer(
            ProgressReply(
                keep_running=True,
                lease_expires_at=lease.expires_at,
                checkpoint_and_stop=lease.checkpoint_and_stop,
                last_seq=lease.last_seq,
            )
        )

    def _file(self, body: bytes) -> None:
        _, _, _, _, token, what, *rest = self.path.split("/")
        lease = self._lease(token)
        if lease is None:
            return self._problem(410, "lease_lost")
        if hashlib.sha256(body).hexdigest() != self.headers.get("X-Content-SHA256"):
            return self._problem(400, "corrupt")
        if what == "checkpoints":
            lease.checkpoints[int(rest[0])] = body
        else:
            lease.adapter = body
        return self._answer({})

    def _blob(self, content: bytes) -> None:
        start = 0
        asked = self.headers.get("Range")
        if asked:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])

    def _answer(self, value: Any) -> None:
        self._send(200, json.dumps(to_json(value)).encode(), "application/json")

    def _problem(self, status: int, code: str) -> None:
        body = json.dumps({"code": code, "detail": f"The market says {code}."}).encode()
        self._send(status, body, "application/problem+json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
