"""Jobs beside each other: curves, outcomes, and only the settings that differ."""

from __future__ import annotations

from typing import Any

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots, record_progress
from marketplace.web.presenters.comparison import COMPARED_MAX
from tests import builders, market_builders
from tests import job_builders as build
from tests.builders import NOW
from tests.pages import read_text
from tests.unit.marketplace.web.conftest import Site

pytestmark = pytest.mark.django_db


def _sell(site: Site, name: str, **changed: Any) -> Job:
    terms = market_builders.job_terms(**changed)
    bid = market_builders.bid(site.organisation, site.zone, data=site.dataset, name=name, **terms)
    decide_pending_bids(zone=site.zone, now=NOW, limit=10)
    return Job.objects.get(bid_id=bid.pk)


def _see(site: Site, *jobs: Job) -> Any:
    return site.client.get("/jobs/compare", {"job": [job.pk for job in jobs]})


def test_settings_that_differ_stand_apart_from_those_that_do_not(site: Site) -> None:
    first = _sell(site, "first", learning_rate=1e-3)
    second = _sell(site, "second", learning_rate=5e-4)
    context = _see(site, first, second).context
    [differing] = context["differing"]
    assert (differing.name, differing.values) == ("training.learning_rate", ["0.001", "0.0005"])
    assert "training.learning_rate" not in [row.name for row in context["same"]]
    assert [site.dataset.name] * 2 in [row.values for row in context["same"]]


def test_the_lowest_validation_loss_is_named_where_the_tests_are_alike(site: Site) -> None:
    first, second = _sell(site, "first"), _sell(site, "second", batch_size=4)
    dispatch_slots(now=market_builders.slot_at(site.zone, first.cells[0][0]))
    held = build.lease(first)
    report = build.report(held, build.event(1, step=6, train_loss=2.5, valid_loss=1.25))
    record_progress(node=held.node, report=report, now=held.opened_at)
    Job.objects.filter(pk=second.pk).update(valid_loss=1.5)
    reply = _see(site, first, second)
    assert reply.context["best"] == first.pk
    assert [line["train"] for line in reply.context["lines"]] == [[(6, 2.5)], []]
    assert [line["valid"] for line in reply.context["lines"]] == [[(6, 1.25)], []]
    text = read_text(reply)
    assert "1.2500 Lowest" in text
    assert "not tested alike" not in text
    Job.objects.filter(pk=second.pk).update(valid_loss=1.25)
    assert _see(site, first, second).context["best"] is None


def test_losses_on_other_rows_are_said_not_to_compare(site: Site) -> None:
    first, second = _sell(site, "first"), _sell(site, "second", seed=7)
    Job.objects.filter(pk=first.pk).update(valid_loss=1.0)
    Job.objects.filter(pk=second.pk).update(valid_loss=2.0)
    reply = _see(site, first, second)
    assert reply.context["best"] is None
    assert "not tested alike" in read_text(reply)


def test_one_job_or_none_says_where_to_choose(site: Site) -> None:
    job = _sell(site, "alone")
    for chosen in ((), (job,), (job, job)):
        reply = _see(site, *chosen)
        assert reply.status_code == 200
        assert "Choose two jobs or more" in read_text(reply)


def test_more_jobs_than_fit_are_counted(site: Site) -> None:
    jobs = [_sell(site, f"job {number}") for number in range(COMPARED_MAX + 2)]
    reply = _see(site, *jobs)
    assert [of["job"] for of in reply.context["columns"]] == jobs[:COMPARED_MAX]
    assert "6 jobs are shown; 2 more were chosen." in read_text(reply)


def test_a_job_of_others_is_not_there(site: Site) -> None:
    own = _sell(site, "own")
    other = build.job(site.zone, (9, site.node), organisation=builders.organisation())
    assert _see(site, own, other).status_code == 404
