"""The jobs' own SQL: what is asked so often that composing a query costs more than its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from django.db.models import BigIntegerField, F, Func
from numpy.typing import NDArray

from marketplace.common.db.rows import read_rows
from marketplace.jobs.models import Job, JobStatus

_ACTIVE = ", ".join(repr(str(status)) for status in Job.ACTIVE)


def build_recent_jobs(*, zone_id: str, since: datetime) -> tuple[str, list[Any]]:
    """A zone's jobs that have not ended, and those that ended after a moment: SQL for a join, and
    its values."""
    return _RECENT_JOBS, [zone_id, zone_id, since]


_OF_ZONE = (
    "SELECT id, bid_id, organisation_id, cells, started_at, finished_at"
    " FROM jobs_job WHERE zone_id = %s"
)
#: Two parts, so that each uses its partial index.
_RECENT_JOBS = f"{_OF_ZONE} AND status IN ({_ACTIVE}) UNION ALL {_OF_ZONE} AND finished_at > %s"


def has_unsettled_jobs(*, zone_id: str) -> bool:
    """Whether a zone has ended jobs whose money is not settled yet."""
    return bool(read_rows(_UNSETTLED, [zone_id])[0][0])


_UNSETTLED = (
    "SELECT EXISTS (SELECT FROM jobs_job"
    " WHERE zone_id = %s AND finished_at IS NOT NULL AND settled_at IS NULL)"
)


def has_jobs_to_replan(*, zone_id: str) -> bool:
    """Whether a zone has jobs that need new cells."""
    return bool(read_rows(_TO_REPLAN, [zone_id, list(map(str, Job.ACTIVE))])[0][0])


_TO_REPLAN = (
    "SELECT EXISTS (SELECT FROM jobs_job WHERE zone_id = %s AND needs_replan AND status = ANY(%s))"
)


def load_running_ages(
    *, zone_id: str, now: datetime
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds lived and seconds left of every running job of a zone."""
    [(packed,)] = read_rows(_RUNNING_AGES, [now.timestamp(), now.timestamp(), zone_id])
    lived_s, left_s = _unpack_pairs(packed)
    return lived_s, left_s


#: One string of big-endian doubles: thousands of rows cost the market's own processor more than
#: counting them does.
_RUNNING_AGES = f"""
SELECT coalesce(string_agg(
    float8send(greatest(0, %s::float8 - extract(epoch FROM started_at)::float8))
    || float8send(greatest(0, coalesce(extract(epoch FROM eta_at)::float8 - %s::float8, 0))), ''
), '')
FROM jobs_job
WHERE zone_id = %s AND status = '{JobStatus.RUNNING}' AND started_at IS NOT NULL
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class DueWork:
    """The active jobs of a zone whose latest start lies inside a window."""

    #: Of each job: seconds it has left to run, and seconds it could wait before that.
    remaining_s: NDArray[np.float64]
    slack_s: NDArray[np.float64]
    #: Active jobs that have no place at all.
    waiting: int


def load_due_work(
    *,
    zone_id: str,
    slot: int,
    slot_s: float,
    now: datetime,
    window_s: float,
    away: Sequence[str],
) -> DueWork:
    """Load what the active jobs of a zone still need of its nodes.

    A running job reports what it has left. For any other, each cell counts as a slot: the cells
    that lie ahead, or, where its cells are lost or past, the share of all its cells whose work is
    in no checkpoint.

    Parameters
    ----------
    away
        Jobs that do not count.
    """
    at = now.timestamp()
    values = (window_s, at, at, slot_s, slot, slot, zone_id, list(away))
    [(packed, waiting)] = read_rows(_DUE_WORK, values)
    remaining_s, slack_s = _unpack_pairs(packed)
    return DueWork(remaining_s=remaining_s, slack_s=slack_s, waiting=waiting)


#: Cells stand in slot order, so that those of a job that has not begun need not be searched
#: through.
_DUE_WORK = f"""
SELECT
    coalesce(string_agg(
        float8send(remaining_s) || float8send(due_s - remaining_s), ''
    ) FILTER (WHERE due_s - remaining_s < %s::float8), ''),
    count(*) FILTER (WHERE needs_replan)
FROM jobs_job j
CROSS JOIN LATERAL (
    SELECT
        extract(epoch FROM j.deadline_at)::float8 - %s::float8 AS due_s,
        CASE
            WHEN j.eta_at IS NOT NULL
            THEN greatest(0, extract(epoch FROM j.eta_at)::float8 - %s::float8)
            ELSE %s::float8 * (
                SELECT
                    CASE WHEN ahead > 0 THEN ahead
                    ELSE jsonb_array_length(j.cells) * (1 - CASE WHEN j.total_steps > 0
                        THEN j.checkpoint_step::float8 / j.total_steps ELSE 0 END) END
                FROM (
                    SELECT CASE WHEN (j.cells -> 0 ->> 0)::bigint >= %s::bigint
                    THEN jsonb_array_length(j.cells)
                    ELSE jsonb_array_length(jsonb_path_query_array(
                        j.cells, '$[*][0] ? (@ >= $from)', jsonb_build_object('from', %s::bigint)
                    )) END AS ahead
                ) counted
            )
        END AS remaining_s
) known
WHERE j.zone_id = %s AND j.status IN ({_ACTIVE})
AND j.id <> ALL(%s)
"""  # noqa: S608


class _FirstSlotFrom(Func):
    # Cells stand in slot order: a job whose first one is still to come, as that of every job
    # that waits, is answered by that one, and only the others are searched through.
    template = """(
        CASE WHEN (%(expressions)s -> 0 ->> 0)::bigint >= %(slot)d
        THEN (%(expressions)s -> 0 ->> 0)::bigint
        ELSE jsonb_path_query_first(
            %(expressions)s, '$[*][0] ? (@ >= $from)', jsonb_build_object('from', %(slot)d)
        )::bigint END
    )"""
    output_field = BigIntegerField()  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def find_first_slot(*, from_slot: int) -> Any:
    """The first slot of a job's cells that is not before a slot, for queries of jobs.

    Null when there is none. Ten thousand jobs need not be read for it.
    """
    return _FirstSlotFrom(F("cells"), slot=from_slot)


def _unpack_pairs(packed: bytes) -> NDArray[np.float64]:
    """Pairs of big-endian doubles as two rows."""
    return np.frombuffer(packed, dtype=">f8").astype(np.float64).reshape(-1, 2).T
