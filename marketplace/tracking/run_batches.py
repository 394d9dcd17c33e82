"""The part of a run that is sent at once, as any service gets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class SentRow:
    """What was measured at a step."""

    step: int
    at: datetime
    #: By the name under which it is shown there.
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SentBatch:
    """Rows of a run, with what the run is called and what its owner chose."""

    #: Of the job; the run is found again by it.
    job_id: str
    key: str
    #: Of the organisation's own server, where the service has such; else empty.
    address: str
    project: str
    entity: str
    name: str
    tags: Sequence[str]
    config: Mapping[str, Any]
    rows: Sequence[SentRow]
    began_at: datetime
    #: The job's status, where nothing follows; ``None`` while it runs.
    ended: str | None = None
    ended_at: datetime | None = None
