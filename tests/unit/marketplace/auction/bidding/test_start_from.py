"""Bids that continue from an adapter of their owner's, and bids that may stop early."""

from __future__ import annotations

import pytest

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.measure import measure_job
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.common.errors import UserError
from marketplace.jobs.models import Artifact, Job, NodePlan
from marketplace.jobs.selectors import find_lease_blob
from marketplace.jobs.services import dispatch_slots
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.messages import SlotPlan
from workers.protocol.reports import SliceEnd
from workers.protocol.wire import from_json

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="20")


def finished_job(owner, zone, **terms) -> Job:
    """A job of the owner's that has succeeded and left an adapter."""
    bid = market.bid(owner, zone, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    dispatch_slots(now=market.slot_at(zone, 101))
    market.end_slice(job, status=SliceEnd.FINISHED, now=market.slot_at(zone, 101))
    return job


def test_a_job_continues_from_its_owners_adapter_with_its_rank(zone, owner):
    node = market.node(zone)
    earlier = finished_job(owner, zone)
    artifact = Artifact.objects.get(job=earlier)
    auto = {"rank": "auto", "alpha": 32.0}
    bid = market.bid(owner, zone, model=f"ft:{earlier.pk}", adapter=auto)
    bid.refresh_from_db()
    assert bid.terms.adapter.rank == 8
    assert bid.terms.start.kind == "continued"
    assert bid.terms.start.artifact_id == artifact.pk
    # The earlier one's alpha is 16: half the weights mean the same.
    assert bid.terms.start.scale == 0.5
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    now = market.slot_at(zone, 101)
    dispatch_slots(now=now)
    plan = from_json(SlotPlan, NodePlan.objects.latest("pk").plan)
    [held] = [one for one in plan.slices if one.job.job_id == job.pk]
    assert held.job.warm_start is not None
    assert held.job.warm_start.adapter.sha256 == artifact.sha256
    assert held.job.warm_start.scale == 0.5
    blob = find_lease_blob(node=node, lease_token=held.lease_token, name="start", now=now)
    assert blob.sha256 == artifact.sha256


def test_a_job_from_fresh_weights_has_no_start_and_no_such_file(zone, owner):
    node = market.node(zone)
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    now = market.slot_at(zone, 101)
    dispatch_slots(now=now)
    assert job.start is None
    token = market.open_slice(job).lease_token
    with pytest.raises(UserError) as caught:
        find_lease_blob(node=node, lease_token=token, name="start", now=now)
    assert caught.value.code == "unknown_blob"


@pytest.mark.parametrize(
    ("adapter", "param", "words"),
    [
        ({"rank": 4}, "adapter.rank", "has adapter.rank 8"),
        ({"target_modules": ["q_proj"]}, "adapter.target_modules", "all modules"),
    ],
)
def test_another_rank_or_other_modules_are_refused_before_the_bid(
    zone, owner, adapter, param, words
):
    market.node(zone)
    earlier = finished_job(owner, zone)
    bids = Bid.objects.count()
    with pytest.raises(UserError, match=words) as caught:
        market.bid(owner, zone, model=f"ft:{earlier.pk}", adapter=adapter)
    assert (caught.value.code, caught.value.param) == ("invalid_hyperparameter", param)
    assert Bid.objects.count() == bids


def test_an_adapter_of_another_base_model_is_refused(zone, owner):
    market.node(zone)
    earlier = finished_job(owner, zone)
    other = market.zone()
    other.base_model_source = "/elsewhere"
    other.save()
    with pytest.raises(UserError, match=f"Bid in zone {zone.name}") as caught:
        market.bid(owner, other, model=f"ft:{earlier.pk}")
    assert caught.value.code == "wrong_base_model"


def test_only_finished_jobs_of_ones_own_can_be_continued(zone, owner):
    market.node(zone)
    foreign = finished_job(builders.organisation(usd="10"), zone)
    running = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    unfinished = Job.objects.get(bid_id=running.pk)
    for model in (f"ft:{foreign.pk}", f"ft:{unfinished.pk}", "ft:", "ft:\0", "gpt", "x" * 500):
        with pytest.raises(UserError) as caught:
            market.bid(owner, zone, model=model)
        assert caught.value.code == "unknown_model"


def test_early_stopping_needs_rows_that_are_held_out(zone, owner):
    terms = market.job_terms(early_stopping=2, validation_share=0.0)
    data = market.dataset(owner, zone)
    with pytest.raises(UserError, match="holds out none") as caught:
        measure_job(JobRequest(owner, zone, data, **terms), now=NOW)
    assert caught.value.param == "training.early_stopping"
