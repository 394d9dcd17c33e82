"""Usage records: what counts of each slice, once its job is over, as CloudEvents."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from marketplace.jobs.executed_work import measure_executed_work
from marketplace.jobs.models import Job
from marketplace.jobs.usage import list_usage_months, write_usage
from tests import builders, job_builders
from tests import market_builders as market
from tests.builders import NOW
from tests.warm_builders import finished, live_node

pytestmark = pytest.mark.django_db

MARCH = {
    "starts_at": datetime(2026, 3, 1, tzinfo=UTC),
    "ends_at": datetime(2026, 4, 1, tzinfo=UTC),
}


def test_a_job_that_ended_has_a_record_for_each_slice_with_the_work_it_is_paid_by() -> None:
    zone, owner = market.zone(), builders.organisation(usd="50")
    node = live_node(zone)
    job = finished(owner, zone)
    [record] = [json.loads(line) for line in write_usage(organisation=owner, **MARCH)]
    held = job.slices.get()
    assert {name: record[name] for name in ("specversion", "type", "id", "subject")} == {
        "specversion": "1.0",
        "type": "finetender.slice.executed",
        "id": held.pk,
        "subject": job.pk,
    }
    assert record["source"].endswith(f"/market/{zone.name}")
    assert datetime.fromisoformat(record["time"]) == held.closed_at
    data = record["data"]
    [work] = measure_executed_work(job).by_node
    assert (data["work_units"], data["steps"]) == (work.units, work.steps)
    assert work.units > 0
    assert (data["node"], data["bid"], data["name"]) == (node.name, job.bid_id, job.name)
    # What others bid or paid is in none of it.
    assert not [name for name in data if "price" in name or "micros" in name]


def test_records_are_an_organisations_own_and_come_with_the_end_of_the_job() -> None:
    zone, owner = market.zone(), builders.organisation(usd="50")
    node = live_node(zone)
    market.bid(owner, zone)
    assert list(write_usage(organisation=owner, **MARCH)) == []
    assert list_usage_months(organisation=owner, now=NOW) == []
    job = finished(owner, zone)
    assert job.finished_at is not None
    assert list_usage_months(organisation=owner, now=job.finished_at) == ["2026-03"]
    other = builders.organisation()
    for at in (datetime(2025, 12, 31, 23, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)):
        made = job_builders.job(zone, (0, node), organisation=other)
        Job.objects.filter(pk=made.pk).update(status="cancelled", finished_at=at)
    months = list_usage_months(organisation=other, now=datetime(2026, 3, 1, tzinfo=UTC))
    assert months == ["2026-02", "2026-01", "2025-12"]
    assert list(write_usage(organisation=builders.organisation(), **MARCH)) == []
