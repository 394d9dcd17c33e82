"""A job as the market gives it to a node: model, adapter, training, where it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum


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
