"""Nodes wait here for their plans, without a thread and without a database connection each.

A request is answered as soon as its node has a plan that it does not hold, and otherwise when its
wait is over. The commit that makes a plan, revokes a token or begins another session of the node
wakes it; requests that look together share two queries. Only the newest request of a node waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from marketplace.api.batching import Batcher
from marketplace.api.internal.endpoint import (
    NodeUnknown,
    build_refusal,
    build_reply,
    find_bearer_token,
    read_message,
    refuse_method,
)
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.notify import listener
from marketplace.fleet.selectors import find_nodes_by_api_tokens
from marketplace.fleet.services import note_token_use
from marketplace.jobs.services import hand_out_plans
from workers.protocol.plan_queue import NextPlanReply, NextPlanRequest

#: A request waits this long at most: proxies cut those that are idle for a minute.
WAIT_MAX_S = 25.0
#: Seconds a waiting request trusts the listener before it looks itself.
LOOK_EVERY_S = 5.0
#: Least seconds between two batches of this size: nodes that are called together come together.
_CROWD = 20
_CROWD_PACE_S = 0.02
BATCH_MAX = 500


def compute_pace_s(size: int) -> float:
    """Least seconds between the starts of a batch of this size and of the next."""
    return _CROWD_PACE_S if size >= _CROWD else 0.0


class MarketStopping(UserError):
    """This process is about to end; another one, or its successor, answers."""

    default_status = HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("market_stopping", "The market restarts. Ask again.")


@csrf_exempt
async def get_next_plan(request: HttpRequest) -> HttpResponseBase:
    if request.method != "POST":
        return refuse_method("POST")
    try:
        asked = _Question(find_bearer_token(request), read_message(request, NextPlanRequest))
        response = build_reply(await waiting_nodes.wait_for_plan(asked))
    except Exception as error:
        response = build_refusal(request, error)
    response["Cache-Control"] = "no-store"
    return response


@dataclass(frozen=True, slots=True)
class _Question:
    token: str
    request: NextPlanRequest


class WaitingNodes:
    """The requests of this process in which nodes wait."""

    def __init__(self) -> None:
        #: By node id: resolved when the request has to end.
        self._newest: dict[str, asyncio.Future[None]] = {}
        self._stopping = False

    async def wait_for_plan(self, asked: _Question) -> NextPlanReply:
        """The answer to a node: a plan, or none when the wait is over or a newer request came.

        Raises
        ------
        UserError
            The token is unknown, the session is over, or this process is about to end.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + min(asked.request.wait_s, WAIT_MAX_S)
        node_id = asked.request.node_id
        with ExitStack() as held:
            ended: asyncio.Future[None] | None = None
            while True:
                # Listening before looking: a plan made in between is heard of.
                with listener.expecting(node_id) as called:
                    answer = await self._look(asked)
                    # Only after the token was checked: a stranger must not end a node's wait.
                    ended = ended or held.enter_context(self._hold(node_id))
                    left_s = ends_at - loop.time()
                    if answer.plan is not None or answer.rotate_token or left_s <= 0:
                        return answer
                    await asyncio.wait(
                        [asyncio.wrap_future(called), ended],
                        timeout=min(LOOK_EVERY_S, left_s),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                if ended.done() and not self._stopping:
                    return NextPlanReply()

    def is_waiting(self, node_id: str) -> bool:
        return node_id in self._newest

    def stop(self) -> None:
        """Answer every waiting request, and those to come, that the process is about to end.

        Call on the event loop.
        """
        self._stopping = True
        for ended in self._newest.values():
            if not ended.done():
                ended.set_result(None)

    async def _look(self, asked: _Question) -> NextPlanReply:
        if self._stopping:
            raise MarketStopping
        return await asyncio.wrap_future(_looks.submit(asked))

    @contextmanager
    def _hold(self, node_id: str) -> Iterator[asyncio.Future[None]]:
        earlier = self._newest.get(node_id)
        if earlier is not None and not earlier.done():
            earlier.set_result(None)
        mine = self._newest[node_id] = asyncio.get_running_loop().create_future()
        try:
            yield mine
        finally:
            if self._newest.get(node_id) is mine:
                del self._newest[node_id]


def _look(batch: list[_Question]) -> Sequence[NextPlanReply | Exception]:
    listener.listen()
    now = clock.now()
    nodes = find_nodes_by_api_tokens({asked.token for asked in batch}, now=now)
    known = [asked for asked in batch if asked.token in nodes]
    for asked in known:
        note_token_use(node=nodes[asked.token], token=asked.token, now=now)
    answers = iter(
        hand_out_plans(asked=[(nodes[asked.token], asked.request) for asked in known], now=now)
    )
    return [next(answers) if asked.token in nodes else NodeUnknown() for asked in batch]


waiting_nodes = WaitingNodes()
_looks = Batcher(
    _look,
    name="node-plans",
    limit=BATCH_MAX,
    pace_s=compute_pace_s,
)
