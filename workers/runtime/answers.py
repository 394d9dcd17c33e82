"""Answers that a node writes beside its training, within a stated share of the time."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial

from workers.protocol.generation import Question
from workers.protocol.job_spec import BaseModelRef
from workers.protocol.memory import GB
from workers.protocol.pass_bytes import answer_bytes
from workers.runtime.resident import ResidentBase
from workers.training.faults import SystemFault, UserFault, is_device_lost
from workers.training.grammars import AnswerGrammar
from workers.training.writing import Load, Tell, Writer

log = logging.getLogger(__name__)

#: Share of the loop's time that answers take while jobs train.
TIME_SHARE = 0.2
#: Seconds of writing that training may come to owe, so that a lone answer is quick at first.
_OWED_MOST_S = 0.5


class Answers:
    """The answers of all resident bases. The training loop's thread owns it."""

    def __init__(self, make_room: Callable[[ResidentBase], None]) -> None:
        #: Called when the cache of a base's answers grows or goes.
        self._make_room = make_room
        self._writers: dict[BaseModelRef, tuple[ResidentBase, Writer]] = {}
        #: Seconds that answers may take before training goes on.
        self._owed_s = _OWED_MOST_S

    @property
    def cache_gb(self) -> float:
        """What the keys and values of all answers may take."""
        return sum(
            answer_bytes(base.plan.shape, base.plan.profile, tokens=writer.longest) / GB
            for base, writer in self._writers.values()
        )

    @property
    def is_busy(self) -> bool:
        return bool(self._writers)

    def is_busy_with(self, ref: BaseModelRef) -> bool:
        return ref in self._writers

    def begin(
        self,
        resident: ResidentBase,
        question: Question,
        load: Load | None,
        tell: Tell,
        grammar: AnswerGrammar | None = None,
    ) -> None:
        """Begin an answer; ``tell`` gets its words, on this thread.

        Raises
        ------
        UserFault, SystemFault
            The model writes no text, or as ``Writer.begin``.
        """
        if resident.model.shape.encoder:
            raise UserFault("This base model is an encoder, which writes no text.")
        _, writer = self._writers.get(resident.ref) or (
            resident,
            Writer(
                resident.model,
                resident.tokenizer,
                resident.adapters,
                partial(self._make_room, resident),
            ),
        )
        self._writers[resident.ref] = resident, writer
        resident.apply_threads()
        began = time.monotonic()
        try:
            writer.begin(question, load, tell, grammar)
        finally:
            self._forget_idle()
        self._owed_s -= time.monotonic() - began

    def end(self, token: str) -> None:
        """Write no more of an answer; an unknown one is no error."""
        for _, writer in self._writers.values():
            writer.end(token)
        self._forget_idle()

    def give_way(self) -> None:
        """End all answers, with their caches: a job needs the memory, and was sold."""
        for resident, writer in self._writers.values():
            writer.fail_all("The node needs its memory for a job. Ask again later.")
            resident.adapters.drop_unused()
        self._forget_idle()

    def write(self, *, trained_s: float) -> bool:
        """Write the next tokens, after a round of the loop that trained for so long.

        Without training every answer gets one token; beside it, as many as ``TIME_SHARE`` allows.

        Returns
        -------
        bool
            Whether the device is still there.
        """
        if not trained_s:
            self._owed_s = _OWED_MOST_S
            return self._write_token()
        gained_s = trained_s * TIME_SHARE / (1 - TIME_SHARE)
        self._owed_s = min(_OWED_MOST_S, self._owed_s + gained_s)
        while self._writers and self._owed_s > 0:
            began = time.monotonic()
            if not self._write_token():
                return False
            self._owed_s -= time.monotonic() - began
        return True

    def _write_token(self) -> bool:
        now = time.time()
        for resident, writer in self._writers.values():
            resident.apply_threads()
            writer.end_expired(now)
            try:
                writer.write_token()
            # What goes wrong ends the answers, not the jobs.
            except Exception as error:
                log.exception("writing answers failed")
                writer.fail_all("The node failed while it wrote. Ask again.")
                if is_device_lost(error):
                    return False
        self._forget_idle()
        return True

    def _forget_idle(self) -> None:
        """Drop writers without answers, with their caches."""
        idle = [ref for ref, (_, writer) in self._writers.items() if not writer.is_busy]
        for ref in idle:
            resident, _ = self._writers.pop(ref)
            # it is room that is given back
            with contextlib.suppress(SystemFault):
                self._make_room(resident)
