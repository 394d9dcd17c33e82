"""At which ages the zone's jobs die early, learned from its own history.

The tables are those of ``scheduler.tiers.hazard``: ended jobs are counted once, as they
end; jobs that run are added whenever the tables are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np
from django.db.models import DurationField, F, Q, Sum
from numpy.typing import NDArray

from marketplace.jobs.models import FaultOf, Job, JobStatus
from marketplace.jobs.queries import load_running_ages
from marketplace.tiers import stay_or_move
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.reconcile_input import SETTLED_AFTER
from scheduler.tiers.break_even import estimate_remaining_s
from scheduler.tiers.hazard import (
    AGE_BINS,
    LENGTH_BOUNDS_S,
    LENGTH_CLASSES,
    Hazards,
    compute_hazard_rate,
    find_age_bin,
    find_length_class,
    observe,
)

#: Ended jobs looked at in one tick.
BATCH_LIMIT = 2000
#: Ended by their owner's wish or input: they died. What the market failed, did not.
_DIED = Q(status__in=Job.STOPPED) | Q(status=JobStatus.FAILED, fault=FaultOf.USER)


@dataclass(frozen=True, slots=True)
class HazardTables:
    """Deaths and seconds lived by length class and age bin."""

    deaths: Hazards
    exposure_s: Hazards

    def expected_left_s(self, *, done_s: float, left_s: float) -> float:
        """Mean seconds that a job of this age still runs."""
        row = find_length_class(done_s + left_s)
        rate = compute_hazard_rate(self.deaths, self.exposure_s, row, find_age_bin(done_s))
        return estimate_remaining_s(left_s, rate)


def learn_from_ended_jobs(*, tiers: ZoneTiers, now: datetime) -> int:
    """Count the jobs that ended since the last call; how many. The caller saves ``tiers``."""
    ended = Job.objects.filter(
        zone=tiers.zone, finished_at__isnull=False, finished_at__lte=now - SETTLED_AFTER
    )
    if tiers.learned_at is not None:
        ended = ended.filter(finished_at__gt=tiers.learned_at)
    times = list(ended.order_by("finished_at").values_list("finished_at", flat=True)[:BATCH_LIMIT])
    if not times:
        return 0
    tables = _load_stored_tables(tiers)
    # All that ended at the last of these moments: the time alone says what is counted.
    rows = ended.filter(finished_at__lte=times[-1]).annotate(
        ran=Sum(F("slices__closed_at") - F("slices__opened_at"), output_field=DurationField())
    )
    died = set(rows.filter(_DIED).values_list("pk", flat=True))
    count = 0
    for job_id, ran, step, total in rows.values_list("pk", "ran", "step", "total_steps"):
        count += 1
        run_s = 0.0 if ran is None else ran.total_seconds()
        if run_s <= 0.0:
            continue
        share = step / total if total and job_id in died else 1.0
        # One that died before its first step tells nothing of its length: the shortest class.
        predicted_s = run_s / share if share > 0 else run_s
        row = find_length_class(predicted_s)
        observe(tables.deaths, tables.exposure_s, row, 0.0, run_s, job_id in died)
        if job_id in died:
            stay_or_move.settle_death(tiers=tiers, job_id=job_id, run_s=run_s)
    tiers.deaths, tiers.exposure_s = tables.deaths.tolist(), tables.exposure_s.tolist()
    tiers.learned_at = times[-1]
    return count


def build_hazard_tables(*, tiers: ZoneTiers, now: datetime) -> HazardTables:
    """The tables as of now, with what running jobs have lived through so far."""
    tables = _load_stored_tables(tiers)
    lived_s, left_s = load_running_ages(zone_id=tiers.zone_id, now=now)
    observe_running_jobs(tables.exposure_s, lived_s=lived_s, predicted_s=lived_s + left_s)
    return tables


def observe_running_jobs(
    exposure_s: Hazards, *, lived_s: NDArray[np.float64], predicted_s: NDArray[np.float64]
) -> None:
    """``hazard.observe`` of many jobs that live, from their starts on, in place."""
    rows = np.searchsorted(LENGTH_BOUNDS_S, predicted_s, side="right")
    begin_s, end_s = 0.0, 30.0
    for column in range(AGE_BINS):
        last = column == AGE_BINS - 1
        inside = np.clip(lived_s - begin_s, 0.0, np.inf if last else end_s - begin_s)
        exposure_s[:, column] += np.bincount(rows, weights=inside, minlength=LENGTH_CLASSES)
        begin_s, end_s = end_s, end_s * 2.0


def _load_stored_tables(tiers: ZoneTiers) -> HazardTables:
    shape = (LENGTH_CLASSES, AGE_BINS)
    deaths, exposure = np.zeros(shape), np.zeros(shape)
    # Tables of another shape are of another version: what they held is learned again.
    if np.shape(tiers.deaths) == shape and np.shape(tiers.exposure_s) == shape:
        deaths[:], exposure[:] = tiers.deaths, tiers.exposure_s
    return HazardTables(deaths=deaths, exposure_s=exposure)
