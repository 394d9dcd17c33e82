"""Answering owners' questions: take them from the market, have the runtime write, send the words.

Two threads of its own: one asks the market for questions, the other sends what was written. An
answer is an extra beside the slices: whatever goes wrong with one ends that answer only.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from workers.node.blob_cache import BlobCache, DiskFullError
from workers.node.market_client import (
    SENT_AWAY,
    MarketClient,
    MarketError,
    MarketRefusal,
    Patience,
    ShuttingDownError,
)
from workers.protocol.generation import (
    BAD_SCHEMA,
    PATH_NEXT_QUESTIONS,
    PATH_WRITTEN,
    QUESTIONS_MAX,
    TOO_LONG,
    NextQuestionsReply,
    NextQuestionsRequest,
    Question,
    Written,
    WrittenReply,
    WrittenReport,
)
from workers.protocol.reports import Fault
from workers.training.faults import PromptTooLong, SchemaFault, TrainingFault, UserFault

log = logging.getLogger(__name__)

#: Seconds a request waits for a question.
WAIT_S = 20.0
#: Seconds between two requests with written tokens: those written meanwhile go together. The first
#: words and the end of an answer do not wait.
GATHER_S = 0.04
_PAUSE_S = 2.0
_ONCE = Patience(total_s=0.0)
_PATIENCE = Patience(total_s=5.0)


class AnsweringRuntime(Protocol):
    def answer(
        self, question: Question, adapter: Path | None, tell: Callable[[Written], None]
    ) -> None: ...

    def end_answer(self, token: str) -> None: ...


class Answerer:
    """Answers questions from ``start`` to ``close``."""

    def __init__(
        self, *, node_id: str, runtime: AnsweringRuntime, cache: BlobCache, client: MarketClient
    ) -> None:
        self._node_id = node_id
        self._runtime = runtime
        self._cache = cache
        self._client = client
        self._closing = threading.Event()
        self._written: SimpleQueue[Written | None] = SimpleQueue()
        #: Tokens of the questions taken and not finished.
        self._open: set[str] = set()
        self._room = threading.Condition()
        self._beginning = ThreadPoolExecutor(2, thread_name_prefix="answer")
        self._threads = [
            threading.Thread(target=self._take_all, name="questions", daemon=True),
            threading.Thread(target=self._send_all, name="answers", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Take and send no more. A request under way is left to end with its client."""
        self._closing.set()
        self._written.put(None)
        with self._room:
            self._room.notify_all()
        self._beginning.shutdown(wait=False, cancel_futures=True)

    def _take_all(self) -> None:
        while not self._closing.is_set():
            with self._room:
                self._room.wait_for(
                    lambda: len(self._open) < QUESTIONS_MAX or self._closing.is_set()
                )
                room = QUESTIONS_MAX - len(self._open)
            if self._closing.is_set():
                return
            try:
                asked = NextQuestionsRequest(self._node_id, room, WAIT_S, takes_forms=True)
                reply = self._client.post(
                    PATH_NEXT_QUESTIONS, asked, NextQuestionsReply, patience=_ONCE
                )
            except ShuttingDownError:
                return
            except MarketError as error:
                if isinstance(error, MarketRefusal) and error.status in SENT_AWAY:
                    return
                log.warning("the market gives no questions: %s", error)
                self._closing.wait(_PAUSE_S)
                continue
            for question in reply.questions:
                self._begin(question)

    def _begin(self, question: Question) -> None:
        if question.token in self._open:
            return
        with self._room:
            self._open.add(question.token)
        # The node may be closing: then no one waits for the answer.
        with contextlib.suppress(RuntimeError):
            self._beginning.submit(self._answer, question)

    def _answer(self, question: Question) -> None:
        try:
            with contextlib.ExitStack() as stack:
                path = None
                if question.adapter is not None:
                    path = stack.enter_context(self._cache.opened(question.adapter.blob))
                self._runtime.answer(question, path, self._written.put)
        except (TrainingFault, MarketError, DiskFullError) as error:
            fault = Fault.USER if isinstance(error, UserFault) else Fault.SYSTEM
            self._refuse(question, str(error), fault, finish=_name_end(error))
        # Nothing of an answer may end the node.
        except Exception:
            log.exception("a question failed")
            self._refuse(question, "The node failed on this question.", Fault.SYSTEM)

    def _refuse(
        self, question: Question, reason: str, fault: Fault, *, finish: str = "error"
    ) -> None:
        self._written.put(Written(question.token, finish=finish, reason=reason, fault=fault))

    def _send_all(self) -> None:
        sent_at = -math.inf
        while not self._closing.is_set():
            first = self._written.get()
            if first is None:
                return
            items = self._gather(first, until=sent_at + GATHER_S)
            sent_at = time.monotonic()
            self._send(merge_written(items))

    def _gather(self, first: Written, *, until: float) -> list[Written]:
        """What is written until then, or until an answer ends, and what is there already."""
        items: list[Written] = []
        item: Written | None = first
        with contextlib.suppress(Empty):
            while item is not None:
                items.append(item)
                if item.finish:
                    until = -math.inf
                left_s = until - time.monotonic()
                item = self._written.get(block=left_s > 0, timeout=max(left_s, 0.0))
        return items

    def _send(self, items: list[Written]) -> None:
        try:
            report = WrittenReport(tuple(items))
            reply = self._client.post(PATH_WRITTEN, report, WrittenReply, patience=_PATIENCE)
            ended = set(reply.ended)
        except MarketError as error:
            log.warning("what was written could not be sent: %s", error)
            # An answer with a hole in it is worth nothing: the market ends it when it expires.
            ended = {item.token for item in items}
        for token in ended:
            self._runtime.end_answer(token)
        with self._room:
            self._open -= ended | {item.token for item in items if item.finish}
            self._room.notify_all()


def _name_end(error: Exception) -> str:
    """How an answer that cannot be begun ends."""
    if isinstance(error, PromptTooLong):
        return TOO_LONG
    return BAD_SCHEMA if isinstance(error, SchemaFault) else "error"


def merge_written(items: list[Written]) -> list[Written]:
    """One item for each answer, with all that its items say."""
    merged: dict[str, Written] = {}
    for item in items:
        before = merged.get(item.token)
        if before is not None:
            item = Written(
                item.token,
                text=before.text + item.text,
                tokens=before.tokens + item.tokens,
                prompt_tokens=item.prompt_tokens or before.prompt_tokens,
                answer_tokens=item.answer_tokens or before.answer_tokens,
                finish=item.finish,
                reason=item.reason,
                fault=item.fault,
            )
        merged[item.token] = item
    return list(merged.values())
