"""Usage records: one for each slice that an organisation's jobs were executed in.

They have the shape of CloudEvents 1.0 (JSON event format), so that a billing system can read them
as they are. A job's records come in the month in which it ended, when no later slice can change
what counts of an earlier one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db.models import Max, Min

from marketplace.accounts.models import Organisation
from marketplace.jobs.executed_work import ExecutedSlice, list_executed_slices, list_slices
from marketplace.jobs.models import Job
from marketplace.jobs.work import load_work_plan

EVENT_TYPE = "finetender.slice.executed"


def list_usage_months(*, organisation: Organisation, now: datetime) -> list[str]:
    """The months from the last in which a job ended back to the first; the present is not over."""
    ended = Job.objects.filter(organisation=organisation, finished_at__lte=now)
    ends = ended.aggregate(first=Min("finished_at"), last=Max("finished_at"))
    if ends["first"] is None:
        return []
    first, last = (
        12 * (at := ends[name].astimezone(UTC)).year + at.month - 1 for name in ("first", "last")
    )
    months = range(last, first - 1, -1)
    return [f"{month // 12}-{month % 12 + 1:02}" for month in months]


def write_usage(
    *, organisation: Organisation, starts_at: datetime, ends_at: datetime
) -> Iterator[str]:
    """Records of the jobs that ended in a period, as JSON lines, in the order they ended in."""
    jobs = Job.objects.filter(
        organisation=organisation, finished_at__gte=starts_at, finished_at__lt=ends_at
    )
    # The names first: no cursor stays open while lines are sent.
    for job_id in list(jobs.order_by("finished_at", "pk").values_list("pk", flat=True)):
        for record in list_records(Job.objects.select_related("zone").get(pk=job_id)):
            yield json.dumps(record, separators=(",", ":"))


def list_records(job: Job) -> list[dict[str, Any]]:
    """One CloudEvent for each slice of a job that has ended."""
    slices = list_slices(job)
    if not slices:
        return []
    executed = list_executed_slices(slices, load_work_plan(job))
    return [_build_record(job, of_slice) for of_slice in executed]


def _build_record(job: Job, executed: ExecutedSlice) -> dict[str, Any]:
    held = executed.slice
    ended_at = held.closed_at or job.finished_at
    assert ended_at is not None
    return {
        "specversion": "1.0",
        "id": held.pk,
        "source": f"{settings.PUBLIC_URL}/market/{job.zone.name}",
        "type": EVENT_TYPE,
        "subject": job.pk,
        "time": ended_at.astimezone(UTC).isoformat(),
        "datacontenttype": "application/json",
        "data": {
            "job": job.pk,
            "bid": job.bid_id,
            "name": job.name,
            "zone": job.zone.name,
            "base_model": job.zone.base_model_name,
            "node": held.node.name,
            "gpu_type": held.node.gpu_type.name,
            "began_at": held.opened_at.astimezone(UTC).isoformat(),
            "first_step": held.first_step,
            "steps": executed.steps,
            "work_units": executed.units,
            "status": held.status,
        },
    }
