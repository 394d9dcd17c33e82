"""What the market tells a node and what a node tells the market."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: Raised when a message changes its meaning; see ``joining`` for those that are still spoken.
PROTOCOL_VERSION = 3


class AdapterKind(StrEnum):
    LORA = "lora"
    SOFT_PROMPT = "soft_prompt"


class DataFormat(StrEnum):
    """Formats a data set may have; see ``workers.protocol.records``."""

    CHAT = "chat"
    COMPLETION = "completion"
    INSTRUCTION = "instruction"
    TEXT = "text"
    PREFERENCE = "preference"
    #: Only encoder base models learn it.
    CLASSIFICATION = "classification"


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
class BlobRef:
    """A file the market stores; ``url`` is a path on the market's own host."""

    url: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class BaseModelRef:
    #: The zone's name for the model.
    name: str
    #: ``bundled:<name>``, a directory on the node, or a Hugging Face hub id.
    source: str
    revision: str | None = None
    #: ``float32``, ``bfloat16`` or ``auto``.
    dtype: str = "auto"
    #: Keep the base's projections in 4 bits.
    four_bit: bool = False
    #: ``base_files.hash_base_files`` of the zone's first node, or of the bundled model: so that a
    #: job that moves finds the same weights. ``None``: not pinned yet.
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    kind: AdapterKind = AdapterKind.LORA
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    #: ``None``: every attention and MLP projection of the architecture.
    target_modules: tuple[str, ...] | None = None
    #: Soft prompt only: number of virtual tokens and their initial text; without one they start
    #: as random tokens.
    virtual_tokens: int = 0
    init_text: str = ""
    #: LoRA only: scale by ``alpha / sqrt(rank)`` (rsLoRA) and not by ``alpha / rank``.
    rslora: bool = False
    #: LoRA only: learn the length of each output's weights apart from their direction (DoRA).
    dora: bool = False
    #: Soft prompt only: start from a known prompt of ``JobSpec.lookup`` if one has less loss on
    #: the job's rows.
    looks_up: bool = False

    @property
    def scale(self) -> float:
        """What LoRA's product is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    epochs: int = 3
    #: Sequences per optimizer step.
    batch_size: int = 8
    learning_rate: float = 2e-4
    #: ``linear``, ``cosine`` or ``constant``, after the warm-up.
    schedule: str = "cosine"
    warmup_share: float = 0.03
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    #: Tokens a row may have; longer rows are cut.
    sequence_length: int = 512
    seed: int = 0
    #: Share of rows held out when there is no validation file.
    validation_share: float = 0.1
    #: Steps between evaluations; 0: about ten evaluations. See ``work.find_evaluation_interval``.
    eval_every_steps: int = 0
    #: What preferences are learnt by: ``dpo`` or ``orpo``.
    preference_loss: str = "dpo"
    #: DPO's beta, or what ORPO weighs the odds by; only read when the data are preferences.
    dpo_beta: float = 0.1
    #: Noise on the embeddings of training rows (NEFTune's alpha); 0: none.
    neftune_alpha: float = 0.0
    #: Evaluations in a row without a lower validation loss after which the job ends, with the
    #: weights of its lowest one; 0: never.
    early_stopping: int = 0
    #: The job ends at the first evaluation whose validation loss is at most this; 0: never.
    target_loss: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkCosts:
    """What work costs on a zone's base model, in 2**-20 of a work unit; see ``work``."""

    #: A token through the frozen layers, forward and backward.
    token: int = 1 << 20
    #: A token whose loss counts: the output layer.
    trained_token: int = 0
    #: Two tokens of a sequence that see each other: attention.
    token_pair: int = 0
    #: A sequence, beside its tokens.
    sequence: int = 0
    #: An optimizer step, beside its sequences.
    step: int = 0
    #: Share of a row's units that a pass without a backward one takes.
    forward: int = 1 << 19
    #: Share that rows take where all of a job's are equally long: their attention is one call.
    even: int = 1 << 20


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    blob: BlobRef
    step: int


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The adapter whose weights a job begins with; its modules and rank are the job's."""

    #: Zip of the adapter's directory.
    adapter: BlobRef
    #: Its second matrices are multiplied by this.
    scale: float = 1.0
    #: Steps after which the job is done if it is at ``target_loss`` then; 0: it runs to its end.
    steps: int = 0
    #: Validation loss. A job above it after ``steps`` goes on until it is there, or to its end.
    target_loss: float | None = None


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Known prompts that a soft prompt may start from."""

    #: A safetensors file: ``float32[tokens, hidden]`` of each, by its id.
    prompts: BlobRef
    #: Seconds the lookup may take.
    budget_s: float


@dataclass(frozen=True, slots=True)
class JobSpec:
    """All a node needs to train one job, wherever and whenever it continues."""

    job_id: str
    base_model: BaseModelRef
    data_format: DataFormat
    dataset: BlobRef
    validation_dataset: BlobRef | None = None
    #: Rows of the file to leave out, numbered from 1 (faulty lines the owner agreed to drop).
    skip_lines: tuple[int, ...] = ()
    adapter: AdapterSpec = field(default_factory=AdapterSpec)
    training: TrainingSpec = field(default_factory=TrainingSpec)
    #: What both sides count the job's work by.
    work_costs: WorkCosts = field(default_factory=WorkCosts)
    #: Seconds between checkpoints; work since the last one is what a dead node loses.
    checkpoint_every_s: float = 60.0
    #: ``None``: from fresh weights.
    warm_start: WarmStart | None = None
    lookup: PromptLookup | None = None


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """One job's share of one slot on one node, held under a lease."""

    lease_token: str
    #: Unix seconds. The node stops the job then unless the lease was renewed.
    lease_expires_at: float
    job: JobSpec
    #: Optimizer step to continue from; ``None`` starts afresh.
    resume_from: CheckpointRef | None = None


#: Rows of a probe, and adapters it compares with the base.
PROBE_ROWS_MAX, PROBE_ADAPTERS_MAX = 16, 8


@dataclass(frozen=True, slots=True)
class ProbeAdapter:
    """An adapter whose loss on a probe's rows is asked for."""

    name: str
    blob: BlobRef
    spec: AdapterSpec
    #: Its second matrices are multiplied by this.
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """How well the base, and each of a few adapters, knows some rows: asked of a warm node."""

    token: str
    #: Unix seconds; an answer after that is not waited for.
    expires_at: float
    base_model: BaseModelRef
    data_format: DataFormat
    #: JSON lines.
    rows: tuple[str, ...]
    sequence_length: int
    adapters: tuple[ProbeAdapter, ...]

    def __post_init__(self) -> None:
        if len(self.rows) > PROBE_ROWS_MAX or len(self.adapters) > PROBE_ADAPTERS_MAX:
            raise ValueError(
                f"a probe has at most {PROBE_ROWS_MAX} rows and {PROBE_ADAPTERS_MAX} adapters"
            )


@dataclass(frozen=True, slots=True)
class ProbeLoss:
    name: str
    #: ``None``: the adapter could not be used.
    loss: float | None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    token: str
    #: Of the base alone; ``None``: the rows could not be used.
    base_loss: float | None
    losses: tuple[ProbeLoss, ...] = ()
    #: Seconds it took on the node.
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What a node runs in the coming slot; jobs absent from it are detached."""

    node_id: str
    slot: int
    #: Unix seconds.
    starts_at: float
    ends_at: float
    slices: tuple[SliceSpec, ...] = ()
    version: int = PROTOCOL_VERSION
    #: Of two plans for one slot the one with the higher number holds.
    revision: int = 0
    #: To be answered once, beside the slices.
    probes: tuple[ProbeSpec, ...] = ()
    #: ``CheckSpec`` as JSON values, likewise: a node that knows none of them answers none.
    checks: tuple[Any, ...] = ()


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


@dataclass(frozen=True, slots=True)
class SpeedMeasurement:
    """One row of the speed table, measured on a device."""

    base_model: str
    batch_size: int
    sequence_length: int
    #: Jobs trained together.
    jobs: int
    samples_per_s: float
    tokens_per_s: float
    base_memory_gb: float
    job_memory_gb: float
    #: Of the base model's files, as ``BaseModelRef.sha256``.
    base_sha256: str = ""


@dataclass(frozen=True, slots=True)
class WorkMeasurement:
    """Optimizer steps of one job that is alone on a device: what they consist of, and their time.

    A zone's ``WorkCosts`` are fitted to a few of them.
    """

    base_model: str
    steps: int
    sequences: int
    tokens: int
    #: Tokens whose loss counts.
    trained_tokens: int
    #: Sum over the sequences of the square of their tokens.
    token_pairs: int
    #: Whether all sequences are equally long.
    even: bool
    seconds: float
    #: Of a pass over the same sequences without a backward one.
    forward_seconds: float


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node's self-test found out about its machine."""

    hostname: str
    #: ``cpu`` or ``cuda``.
    device: str
    #: Such as ``A100-80GB`` or ``cpu``.
    gpu_type: str
    gpu_count: int
    memory_gb: float
    cores: int
    torch_version: str
    protocol_version: int
    speeds: tuple[SpeedMeasurement, ...] = ()
    #: Empty after a quick self-test.
    work: tuple[WorkMeasurement, ...] = ()
    #: Of the node's package; empty where it does not say.
    release: str = ""
    #: Of NVIDIA's driver; ``None`` without one.
    driver: int | None = None
    disk_free_gb: float | None = None


@dataclass(frozen=True, slots=True)
class JoinModelsRequest:
    """Asks, with a join token, which base models the self-test should measure."""

    token: str
    #: The first and the last version of messages that the node speaks; 0 where it does not say.
    least_version: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class JoinModelsReply:
    base_models: tuple[BaseModelRef, ...]
    #: Of the messages that both speak from here on.
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class JoinRequest:
    token: str
    name: str
    facts: NodeFacts
    #: The API token in the machine's state directory, where there is one: proof that it is the node
    #: of that name, and not another machine under its name.
    held_token: str = ""


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The node's own credentials; all that it does later is under its token."""

    node_id: str
    api_token: str
    heartbeat_every_s: float
    base_models: tuple[BaseModelRef, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    node_id: str
    at: float
    #: Leases the node is working on.
    lease_tokens: tuple[str, ...] = ()
    memory_used_gb: float | None = None
    draining: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    #: Leases the node must drop at once.
    revoked: tuple[str, ...] = ()
    #: The node should finish what it runs and leave.
    drain: bool = False


#: HTTP paths on the market, all under the node's bearer token except the two of ``join``,
#: whose bodies hold the join token. All are POST unless they say otherwise; an error's
#: body is problem+json with ``code`` and ``detail``.
PATH_JOIN = "/internal/v1/join"
PATH_JOIN_MODELS = "/internal/v1/join/models"
PATH_HEARTBEAT = "/internal/v1/heartbeat"
PATH_PROGRESS = "/internal/v1/progress"
PATH_RESULT = "/internal/v1/result"
PATH_PROBE_RESULT = "/internal/v1/probes"
#: PUT, one safetensors file. Format with ``lease_token`` and ``step``.
PATH_CHECKPOINT = "/internal/v1/leases/{lease_token}/checkpoints/{step}"
#: PUT, one zip of the adapter's directory. Format with ``lease_token``.
PATH_ADAPTER = "/internal/v1/leases/{lease_token}/adapter"

#: Files the zip of an adapter may hold, all at its top; the first two it must.
ADAPTER_FILES = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "README.md",
    "training.json",
    "metrics.csv",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
)

#: Celery task of a node; its one keyword is ``plan``, a ``SlotPlan`` as JSON value.
TASK_RUN_SLOT = "workers.run_slot"
