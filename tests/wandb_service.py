"""Stands in for Weights & Biases: what its own client asks of a server, kept in memory."""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")


class StoredRun:
    """What the service knows of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.config: dict[str, Any] = {}
        self.fields: dict[str, Any] = {}
        self.exit_code: int | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """Rows as they were logged, with their step."""
        rows = [json.loads(line) for line in self.lines]
        return [{k: v for k, v in row.items() if k in ("_step",) or "/" in k} for row in rows]


class WandbService:
    """Runs by project and id; ``refuses``: every key is wrong."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, str], StoredRun] = {}
        self.keys: set[str] = set()
        self.refuses = False
        #: Whole bodies, to see what is not in them.
        self.bodies: list[bytes] = []
        self.url = ""


@contextmanager
def run_wandb_service() -> Iterator[WandbService]:
    service = WandbService()

    class Handler(_Requests):
        pass

    Handler.service = service
    server = _Server(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """The client breaks connections off when it ends."""


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: WandbService

    def log_request(self, *_: Any) -> None:
        pass

    def do_PUT(self) -> None:
        self._read()
        self._answer({})

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        body = self._read()
        if self.service.refuses:
            self._answer({"errors": [{"message": "invalid api key"}]}, status=401)
            return
        self._note_key()
        if self.path == "/graphql":
            asked = json.loads(body)
            found = _OPERATION.search(asked["query"])
            name = found[1] if found else ""
            self._answer({"data": self._resolve(name, asked.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            _, _, _entity, project, run_id, _ = self.path.split("/")
            self._take_lines(self.service.runs[project, run_id], json.loads(body))
            self._answer({"exitcode": None, "limits": {}})
        else:
            self._answer({})

    def _note_key(self) -> None:
        kind, _, value = self.headers.get("authorization", "").partition(" ")
        if kind == "Basic":
            self.service.keys.add(base64.b64decode(value).decode().partition(":")[2])

    def _take_lines(self, run: StoredRun, body: dict[str, Any]) -> None:
        history = body.get("files", {}).get("wandb-history.jsonl")
        if history is not None:
            at = history["offset"]
            run.lines[at : at + len(history["content"])] = history["content"]
        if body.get("complete"):
            run.exit_code = body["exitcode"]

    def _resolve(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        if name == "RunResumeStatus":
            run = self.service.runs.get((given["project"], given["name"]))
            bucket = None if run is None else self._show_bucket(given["name"], run)
            return {"model": {**self._show_project(given["project"]), "bucket": bucket}}
        if name == "UpsertBucket":
            place = given["project"], given["name"]
            is_new = place not in self.service.runs
            run = self.service.runs.setdefault(place, StoredRun())
            run.config.update(json.loads(given["config"] or "{}"))
            run.fields.update({k: v for k, v in given.items() if v is not None})
            shown = self._show_bucket(given["name"], run)
            shown["project"] = self._show_project(given["project"])
            return {"upsertBucket": {"bucket": shown, "inserted": is_new}}
        if name == "CreateRunFiles":
            files = [
                {"name": file, "uploadUrl": f"{self.service.url}/kept"} for file in given["files"]
            ]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        return {}

    def _show_project(self, name: str) -> dict[str, Any]:
        return {"id": "1", "name": name, "entity": {"id": "1", "name": "team"}}

    def _show_bucket(self, name: str, run: StoredRun) -> dict[str, Any]:
        return {
            "id": "1",
            "name": name,
            "displayName": name,
            "description": "",
            "config": json.dumps(run.config),
            "wandbConfig": '{"t": 1}',
            "summaryMetrics": "{}",
            "sweepName": None,
            "tags": [],
            "historyLineCount": len(run.lines),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps(run.lines[-1:]),
            "eventsTail": "[]",
        }

    def _read(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.service.bodies.append(body)
        return body

    def _answer(self, value: Any, *, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
