"""What a node reports of a running job, and of how its slice ended."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """Who caused a failure: the owner's input, or the market."""

    USER = "user"
    SYSTEM = "system"


class SliceEnd(StrEnum):
    #: All epochs done, the adapter is uploaded.
    FINISHED = "finished"
    #: The lease ended or the market asked; a checkpoint is uploaded.
    PAUSED = "paused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One coalesced report of a running job; at most two a second per job."""

    #: Strictly increasing per lease, from 1.
    seq: int
    #: Unix seconds on the node.
    at: float
    step: int
    total_steps: int
    epoch: float
    samples_done: int
    #: Work units of the steps done, evaluations included.
    units_done: int = 0
    train_loss: float | None = None
    valid_loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    #: Seconds to the end at the present speed.
    eta_s: float | None = None
    memory_gb: float | None = None
    #: Lines for the log stream.
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgressReport:
    lease_token: str
    events: tuple[ProgressEvent, ...]


@dataclass(frozen=True, slots=True)
class ProgressReply:
    #: False: the lease is lost or cancelled; stop at once, upload nothing.
    keep_running: bool
    #: New expiry when the lease was renewed.
    lease_expires_at: float | None = None
    #: The market wants a checkpoint and the job off this node (a move).
    checkpoint_and_stop: bool = False
    #: Last sequence number the market has; older events need not be resent.
    last_seq: int = 0


@dataclass(frozen=True, slots=True)
class RowOutlier:
    """A training row whose loss stands out at the end."""

    #: Line of the data set's file, from 1.
    line: int
    loss: float


#: NUL and halves of surrogate pairs: JSON can name them, no database holds them.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
#: Samples of a result, and characters of each of their texts.
SAMPLES_MAX = 3
SAMPLE_CHARS = 600


@dataclass(frozen=True, slots=True)
class TextSample:
    """What the model writes on the prompt of a held-out row, before and after training."""

    prompt: str
    before: str
    after: str

    def __post_init__(self) -> None:
        for text in (self.prompt, self.before, self.after):
            if len(text) > SAMPLE_CHARS:
                raise ValueError(f"a text of a sample has more than {SAMPLE_CHARS} characters")
            if _UNSTORABLE.search(text):
                raise ValueError("a text of a sample has characters that no database takes")


@dataclass(frozen=True, slots=True)
class LookupFigures:
    """What the lookup of a soft prompt's start found."""

    #: Id of the prompt that the job starts from; empty: its own is at least as good.
    prompt_id: str
    #: Mean loss of a token on the rows scored, of that prompt and of the job's own.
    score: float
    own_score: float
    #: Prompts compared, the job's own included, and losses of rows computed.
    candidates: int
    losses: int
    seconds: float


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Where a job stands."""

    step: int
    total_steps: int
    samples_done: int
    first_train_loss: float | None = None
    last_train_loss: float | None = None
    valid_loss_before: float | None = None
    valid_loss_after: float | None = None
    trained_tokens: int = 0
    #: Work units of the steps done, evaluations included.
    units_done: int = 0
    peak_memory_gb: float | None = None
    #: Worst first.
    outliers: tuple[RowOutlier, ...] = ()
    #: Of a finished job with held-out rows.
    samples: tuple[TextSample, ...] = ()
    #: The job ended before its last step because it learnt no more.
    stopped_early: bool = False
    #: Step whose weights the adapter has, if they are not the last ones.
    best_step: int | None = None
    #: Of a soft prompt whose start was looked up in this slice.
    lookup: LookupFigures | None = None
    #: Of a finished soft prompt: the longest run of its virtual tokens that spell out words of a
    #: row, in tokens.
    copied_tokens: int | None = None
    #: Training rows that a finished adapter says by heart, beyond what held-out rows explain.
    memorised_rows: int = 0
    #: Seconds from taking the job up to its being in the loop: data read, adapter in place.
    attach_s: float | None = None
    #: Unix seconds on the node of the first and the last step made there since.
    first_step_at: float | None = None
    last_step_at: float | None = None

    def __post_init__(self) -> None:
        if len(self.samples) > SAMPLES_MAX:
            raise ValueError(f"there are more than {SAMPLES_MAX} samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceResult(JobFigures):
    """How a slice ended; applied only while its lease is the current one."""

    lease_token: str
    status: SliceEnd
    fault: Fault | None = None
    #: One sentence for the owner: what happened and what to do.
    reason: str = ""
