"""Errands: side jobs that a node does beside its slices, such as an export, a check or a probe.

They travel with the node's plan. Each has a token, under which the node fetches what it needs and
answers, once and in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workers.protocol.reports import Fault

#: POST an ``ErrandResult`` under the node's bearer token. Format with ``token``.
PATH_ERRAND_RESULT = "/internal/v1/errands/{token}/result"
#: PUT the file that the errand asks for. Format with ``token``.
PATH_ERRAND_FILE = "/internal/v1/errands/{token}/file"
#: GET a file that the errand needs. Format with ``token`` and ``name``.
PATH_ERRAND_BLOB = "/internal/v1/errands/{token}/blobs/{name}"

#: Values of ``ErrandSpec.kind``; each has its task and its result in a module of this package.
EXPORT, CHECK, PROBE, FAULT = "export", "check", "probe", "fault"


@dataclass(frozen=True, slots=True)
class ErrandSpec:
    """One errand in a node's plan."""

    kind: str
    token: str
    #: Unix seconds; an answer after that is refused.
    expires_at: float
    #: ``ExportTask``, ``CheckTask``, ``ProbeTask`` or ``FaultCheckTask`` as JSON value.
    task: Any


@dataclass(frozen=True, slots=True)
class ErrandResult:
    """A node's answer, where the errand does not ask for a file."""

    #: ``CheckResult``, ``ProbeResult`` or ``FaultCheckResult`` as JSON value; ``None``: the errand
    #: could not be done.
    found: Any = None
    #: Why it could not be done, as a sentence, and whose fault that is.
    reason: str = ""
    fault: Fault | None = None
