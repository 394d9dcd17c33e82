"""Strangers see how the last jobs went, and not whose they were."""

from __future__ import annotations

import pytest

from marketplace.auction.models import Bid
from marketplace.jobs.models import Job
from marketplace.web.presenters.finished import list_finished_jobs, round_size
from marketplace.web.views import market
from tests.unit.marketplace.web.conftest import Site
from tests.unit.marketplace.web.test_take_away import finish_job

pytestmark = pytest.mark.django_db


def test_a_finished_job_is_shown_by_size_price_promise_and_time(site: Site) -> None:
    market._figures.clear()
    job = finish_job(site)
    Job.objects.update(trained_tokens=123_456)
    bid = Bid.objects.get(pk=job.bid_id)
    [seen] = list_finished_jobs(site.zone)
    assert (seen.tokens, seen.paid_micros, seen.is_done) == (120_000, bid.paid_micros, True)
    assert seen.promised_s == (job.deadline_at - bid.created_at).total_seconds()
    assert job.finished_at is not None
    assert seen.took_s == (job.finished_at - bid.created_at).total_seconds()
    assert not seen.is_late
    site.client.logout()
    page = site.client.get("/").content.decode()
    shown = page[page.index('id="finished"') : page.index('id="how"')]
    assert "120.0 k tokens" in shown
    assert "In time" in shown
    secrets = (job.pk, job.name, bid.pk, site.organisation.name, site.dataset.name)
    assert not [secret for secret in secrets if secret in shown]


def test_what_its_owner_ended_is_not_among_them(site: Site) -> None:
    finish_job(site)
    Job.objects.update(status="cancelled")
    assert list_finished_jobs(site.zone) == []


@pytest.mark.parametrize(
    ("count", "rounded"), [(0, 0), (99, 99), (101, 100), (1_249, 1_200), (987_654_321, 990_000_000)]
)
def test_sizes_are_rounded_to_two_digits(count: int, rounded: int) -> None:
    assert round_size(count) == rounded
