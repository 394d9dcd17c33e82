"""What a node's self-test finds out about its machine."""

from __future__ import annotations

from dataclasses import dataclass

from workers.protocol.model_shape import BasePart


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
    #: Where the node is a group of devices: what of the base is on each of them.
    parts: tuple[BasePart, ...] = ()


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
    #: Of a group, what all of its devices may hold, each an equal part.
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
    #: Seconds that the slowest of the base models took to load.
    load_s: float = 0.0
    #: Of the host's memory, what packs of one device may spill into.
    host_gb: float = 0.0
