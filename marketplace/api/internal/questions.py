"""Nodes take questions here and send what they write; one that waits holds no thread.

Requests that look together share two queries, as those for plans do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from marketplace.api.batching import Batcher
from marketplace.api.internal.endpoint import (
    NodeUnknown,
    authenticate_node,
    build_refusal,
    build_reply,
    find_bearer_token,
    node_endpoint,
    read_message,
    refuse_method,
)
from marketplace.api.internal.plans import BATCH_MAX, LOOK_EVERY_S, WAIT_MAX_S, compute_pace_s
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.threads import run_in_thread
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import find_nodes_by_api_tokens
from marketplace.fleet.services import note_token_use
from marketplace.questions.answering import hand_out_questions, list_zones_asked, record_written
from marketplace.questions.wakeups import asked_listener
from workers.protocol.generation import (
    NextQuestionsReply,
    NextQuestionsRequest,
    Question,
    WrittenReply,
    WrittenReport,
)


@dataclass(frozen=True, slots=True)
class _WaitingRequest:
    token: str
    request: NextQuestionsRequest


class WaitingAnswerers:
    """The requests of this process in which nodes wait for questions."""

    def __init__(self) -> None:
        self._waits: set[asyncio.Future[None]] = set()
        self._stopping = False

    async def wait_for_questions(self, request: HttpRequest) -> NextQuestionsReply:
        """The answer to a node: questions, or none when the wait is over.

        Raises
        ------
        UserError
            The token is unknown, or names another node than the request.
        """
        asked = _WaitingRequest(
            find_bearer_token(request), read_message(request, NextQuestionsRequest)
        )
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + max(0.0, min(asked.request.wait_s, WAIT_MAX_S))
        node = await run_in_thread(lambda: authenticate_node(request))
        if node.pk != asked.request.node_id:
            raise UserError("wrong_node", "This request names another node than its token.")
        while True:
            # Listening before looking: a question asked in between is heard of.
            with asked_listener.expecting(node.zone_id) as called:
                found = await asyncio.wrap_future(_looks.submit(asked))
                left_s = ends_at - loop.time()
                if found or left_s <= 0 or self._stopping:
                    return NextQuestionsReply(found)
                ended: asyncio.Future[None] = loop.create_future()
                self._waits.add(ended)
                try:
                    await asyncio.wait(
                        [asyncio.wrap_future(called), ended],
                        timeout=min(LOOK_EVERY_S, left_s),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    self._waits.discard(ended)

    def stop(self) -> None:
        """Answer every waiting request: the process is about to end. Call on the event loop."""
        self._stopping = True
        for ended in self._waits:
            if not ended.done():
                ended.set_result(None)


def _look(batch: list[_WaitingRequest]) -> Sequence[tuple[Question, ...] | Exception]:
    asked_listener.listen()
    now = clock.now()
    # A token may have been revoked while its node waited.
    nodes = find_nodes_by_api_tokens({asked.token for asked in batch}, now=now)
    zones = list_zones_asked({node.zone_id for node in nodes.values()}, now=now)
    return [_hand_out(asked, nodes.get(asked.token), zones, now) for asked in batch]


def _hand_out(
    asked: _WaitingRequest, node: Node | None, zones: Collection[str], now: datetime
) -> tuple[Question, ...] | Exception:
    if node is None:
        return NodeUnknown()
    try:
        note_token_use(node=node, token=asked.token, now=now)
        if node.zone_id not in zones:
            return ()
        request = asked.request
        return hand_out_questions(
            node=node, room=request.room, takes_forms=request.takes_forms, now=now
        )
    except Exception as error:
        # The others of the batch have theirs.
        return error


waiting_answerers = WaitingAnswerers()
_looks = Batcher(
    _look,
    name="node-questions",
    limit=BATCH_MAX,
    pace_s=compute_pace_s,
)


@csrf_exempt
async def get_next_questions(request: HttpRequest) -> HttpResponseBase:
    if request.method != "POST":
        return refuse_method("POST")
    try:
        response = build_reply(await waiting_answerers.wait_for_questions(request))
    except Exception as error:
        response = build_refusal(request, error)
    response["Cache-Control"] = "no-store"
    return response


@node_endpoint("POST")
def take_written(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    report = read_message(request, WrittenReport)
    ended = record_written(node=node, items=report.items, now=clock.now())
    return build_reply(WrittenReply(tuple(ended)))
