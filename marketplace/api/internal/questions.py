"""Nodes take questions here and send what they write; one that waits holds no thread."""

from __future__ import annotations

import asyncio

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from marketplace.api.internal.endpoint import (
    authenticate_node,
    message,
    method_refusal,
    node_endpoint,
    refusal,
    reply,
)
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.threads import run_in_thread
from marketplace.questions.answering import hand_out_questions, record_written
from marketplace.questions.wakeups import asked_listener
from workers.protocol.generation import (
    NextQuestionsReply,
    NextQuestionsRequest,
    Question,
    WrittenReply,
    WrittenReport,
)

#: A request waits this long at most: proxies cut those that are idle for a minute.
WAIT_MAX_S = 25.0
#: Seconds a waiting request trusts the listener before it looks itself.
LOOK_EVERY_S = 5.0


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
        asked = message(request, NextQuestionsRequest)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + max(0.0, min(asked.wait_s, WAIT_MAX_S))
        node = await run_in_thread(lambda: authenticate_node(request))
        if node.pk != asked.node_id:
            raise UserError("wrong_node", "This request names another node than its token.")
        while True:
            # Listening before looking: a question asked in between is heard of.
            with asked_listener.expecting(node.zone_id) as called:
                found = await run_in_thread(lambda: _look(request, asked))
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


def _look(request: HttpRequest, asked: NextQuestionsRequest) -> tuple[Question, ...]:
    asked_listener.listen()
    # The token may have been revoked while the node waited.
    node = authenticate_node(request)
    return hand_out_questions(node=node, room=asked.room, now=clock.now())


waiting_answerers = WaitingAnswerers()


@csrf_exempt
async def get_next_questions(request: HttpRequest) -> HttpResponseBase:
    if request.method != "POST":
        return method_refusal("POST")
    try:
        response = reply(await waiting_answerers.wait_for_questions(request))
    except Exception as error:
        response = refusal(request, error)
    response["Cache-Control"] = "no-store"
    return response


@node_endpoint("POST")
def take_written(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    report = message(request, WrittenReport)
    ended = record_written(node=node, items=report.items, now=clock.now())
    return reply(WrittenReply(tuple(ended)))
