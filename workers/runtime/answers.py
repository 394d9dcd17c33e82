"""Answers that a node writes beside its training, within a stated share of the time."""

from __future__ import annotations

import logging
import time

from workers.protocol.generation import Question
from workers.protocol.messages import BaseModelRef
from workers.runtime.resident import ResidentBase
from workers.training.faults import UserFault, is_device_lost
from workers.training.writing import Tell, Values, Writer

log = logging.getLogger(__name__)

#: Share of the loop's time that answers take while jobs train.
TIME_SHARE = 0.2
#: Seconds of writing that training may come to owe, so that a lone answer is quick at first.
_OWED_MOST_S = 0.5


class Answers:
    """The answers of all resident bases. The training loop's thread owns it."""

    def __init__(self) -> None:
        self._writers: dict[BaseModelRef, tuple[ResidentBase, Writer]] = {}
        #: Seconds that answers may take before training goes on.
        self._owed_s = _OWED_MOST_S

    @property
    def is_busy(self) -> bool:
        return bool(self._writers)

    def is_busy_with(self, ref: BaseModelRef) -> bool:
        return ref in self._writers

    def begin(
        self, resident: ResidentBase, question: Question, values: Values | None, tell: Tell
    ) -> None:
        """Begin an answer; ``tell`` gets its words, on this thread.

        Raises
        ------
        UserFault
            The model writes no text, or the prompt is none for it.
        """
        if resident.model.shape.encoder:
            raise UserFault("This base model is an encoder, which writes no text.")
        _, writer = self._writers.get(resident.ref) or (
            resident,
            Writer(resident.model, resident.tokenizer),
        )
        resident.apply_threads()
        began = time.monotonic()
        writer.begin(question, values, tell)
        self._owed_s -= time.monotonic() - began
        if writer.is_busy:
            self._writers[resident.ref] = resident, writer

    def end(self, token: str) -> None:
        """Write no more of an answer; an unknown one is no error."""
        for _, writer in self._writers.values():
            writer.end(token)
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
        self._writers = {ref: found for ref, found in self._writers.items() if found[1].is_busy}
