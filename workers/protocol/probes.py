"""Probes: what the base and some adapters lose on a few rows of a job, before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from workers.protocol.job_spec import AdapterSpec, BaseModelRef, BlobRef, DataFormat

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
class ProbeTask:
    """How well the base, and each of a few adapters, knows some rows: asked of a warm node."""

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
    #: Of the base alone; ``None``: the rows could not be used.
    base_loss: float | None
    losses: tuple[ProbeLoss, ...] = ()
    #: Seconds it took on the node.
    seconds: float = 0.0
