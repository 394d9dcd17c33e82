"""One leased job on the node: its states, and the progress it has yet to tell."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from workers.node.upload_files import discard
from workers.protocol.messages import SliceSpec
from workers.protocol.reports import ProgressEvent, SliceResult

#: Events kept while the market cannot be reached; beyond it neighbours are merged.
BUFFERED_EVENTS = 240
#: Log lines one merged event keeps.
_LOG_LINES = 50


class SliceState(StrEnum):
    #: Data and checkpoint are fetched, the job is being attached.
    PREPARING = "preparing"
    #: In the training loop.
    RUNNING = "running"
    #: Detached; its last checkpoint is being written.
    STOPPING = "stopping"
    #: Ended; what it leaves behind and how it ended are being sent.
    SENDING = "sending"
    #: The market has the result, or does not want it: the lease is over.
    CLOSED = "closed"


#: What may follow what; everything else is a bug.
NEXT: dict[SliceState, frozenset[SliceState]] = {
    SliceState.PREPARING: frozenset(
        {SliceState.RUNNING, SliceState.STOPPING, SliceState.SENDING, SliceState.CLOSED}
    ),
    SliceState.RUNNING: frozenset({SliceState.STOPPING, SliceState.SENDING, SliceState.CLOSED}),
    SliceState.STOPPING: frozenset({SliceState.SENDING, SliceState.CLOSED}),
    SliceState.SENDING: frozenset({SliceState.CLOSED}),
    SliceState.CLOSED: frozenset(),
}


@dataclass(slots=True)
class Outbox:
    """What has to reach the market, in this order, before the slice is closed."""

    #: Newest checkpoint not sent yet: a file of the node's own, and its step.
    checkpoint: tuple[Path, int] | None = None
    adapter_dir: Path | None = None
    result: SliceResult | None = None
    #: Something is on its way on an upload thread.
    busy: bool = False
    #: The checkpoint that is; its file stays until its fate is known.
    sending: Path | None = None
    #: Monotonic seconds before which nothing is tried again.
    not_before: float = 0.0
    tries: int = 0

    def put_checkpoint(self, path: Path, step: int) -> None:
        """Have a newer checkpoint sent; the one that it replaces is deleted."""
        old = self.checkpoint
        if old is not None and old[0] not in (path, self.sending):
            discard(old[0])
        self.checkpoint = (path, step)

    def drop_checkpoint(self) -> None:
        """Send no checkpoint; one that is on its way stays until its fate is known."""
        checkpoint, self.checkpoint = self.checkpoint, None
        if checkpoint is not None and checkpoint[0] != self.sending:
            discard(checkpoint[0])


@dataclass(slots=True)
class SliceRun:
    spec: SliceSpec
    #: Market's clock, unix seconds.
    lease_expires_at: float
    state: SliceState = SliceState.PREPARING
    progress: ProgressBuffer = field(default_factory=lambda: ProgressBuffer())
    outbox: Outbox = field(default_factory=Outbox)
    #: Asked to stop, but not before its end if it has done its last step.
    stop_wanted: bool = False
    #: Market's clock at which it has to stop in any case, once it was asked to.
    leave_at: float = 0.0
    #: Asked to stop in any case.
    stops_at_once: bool = False
    #: The market does not want this lease any more; nothing of it may be sent.
    lost: bool = False
    #: Step of the newest checkpoint the market is known to have.
    stored_step: int = 0

    @property
    def job_id(self) -> str:
        return self.spec.job.job_id

    @property
    def token(self) -> str:
        return self.spec.lease_token

    @property
    def on_device(self) -> bool:
        """Whether the runtime may still hold the job."""
        return self.state in (SliceState.PREPARING, SliceState.RUNNING, SliceState.STOPPING)

    def is_over(self, now: float) -> bool:
        """Whether its time on the device has run out."""
        return now >= (self.leave_at if self.stop_wanted else self.lease_expires_at)

    def enter(self, state: SliceState) -> None:
        """Go to a state; call on the node's thread.

        Raises
        ------
        ValueError
            When it cannot follow the present one.
        """
        if state not in NEXT[self.state]:
            raise ValueError(f"slice of {self.job_id}: {self.state} cannot become {state}")
        self.state = state

    def adopt(self, spec: SliceSpec) -> None:
        """Go on under a new lease for the same job; its reports start again."""
        self.spec = spec
        self.lease_expires_at = spec.lease_expires_at
        self.progress = self.progress.renumbered()
        self.lost = False


class ProgressBuffer:
    """Events waiting for the market, numbered from 1 per lease when first sent.

    A batch whose fate is unknown is sent again as it was, so that the market can tell
    it from a new one.
    """

    def __init__(self) -> None:
        self._waiting: list[ProgressEvent] = []
        self._sent: tuple[ProgressEvent, ...] = ()
        self._seq = 0
        #: Whether the market has answered on this lease at all.
        self._greeted = False
        self.busy = False
        self.tries = 0
        #: Monotonic seconds before which nothing is sent.
        self.not_before = 0.0
        #: Monotonic seconds of the last report.
        self.reported_at = float("-inf")

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._sent

    def add(self, event: ProgressEvent) -> None:
        self._waiting.append(event)
        if len(self._waiting) > BUFFERED_EVENTS:
            # Halve the resolution of the older half; nothing logged is lost.
            half = BUFFERED_EVENTS // 2
            old, new = self._waiting[:half], self._waiting[half:]
            merged = [merge(*old[i : i + 2]) for i in range(0, half - 1, 2)]
            self._waiting = merged + new

    def batch(self) -> tuple[ProgressEvent, ...]:
        """What to send now: the unconfirmed batch if there is one, else all that waits.

        Nothing before the market has said how far it is: an earlier process of this
        node may have reported on the same lease.

        What gathered since the last report is sent as one event, unless the market was
        out of reach and the curve would lose its shape.
        """
        if self._greeted and not self._sent and self._waiting:
            waiting = self._waiting
            if len(waiting) <= 4:
                waiting = [merge(*waiting)]
            self._sent = tuple(
                replace(event, seq=self._seq + i) for i, event in enumerate(waiting, 1)
            )
            self._seq += len(self._sent)
            self._waiting = []
        return self._sent

    def confirmed(self, *, last_seq: int) -> None:
        """The market answered: it has everything up to ``last_seq``."""
        self._sent = ()
        self._seq = max(self._seq, last_seq)
        self._greeted = True
        self.tries = 0

    def renumbered(self) -> ProgressBuffer:
        """The same events, none of them confirmed, for a lease of its own."""
        fresh = ProgressBuffer()
        fresh._waiting = [*self._sent, *self._waiting]
        return fresh


def merge(*events: ProgressEvent) -> ProgressEvent:
    """One event that says what several said: the latest numbers, and all log lines."""
    merged = events[0]
    for event in events[1:]:
        known = {
            name: getattr(event, name)
            if getattr(event, name) is not None
            else getattr(merged, name)
            for name in _OPTIONAL
        }
        merged = replace(event, **known, log=(merged.log + event.log)[-_LOG_LINES:])
    return merged


_OPTIONAL = (
    *("train_loss", "valid_loss", "learning_rate", "grad_norm"),
    *("tokens_per_s", "samples_per_s", "eta_s", "memory_gb"),
)
