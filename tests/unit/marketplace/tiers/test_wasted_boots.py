"""Machines that were started for jobs which their owner then cancelled: a few a day, no more."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.bundles import NewBundle, place_bundle
from marketplace.auction.bidding.wasted_boots import list_wasted_boots
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import Conflict
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from marketplace.payments.selectors import get_wallet
from marketplace.tiers.models import ZoneTiers
from tests import builders, market_builders
from tests.job_builders import at
from tests.unit.marketplace.tiers.backends import MemoryBackend, tiers
from tests.unit.marketplace.tiers.handoff import tick
from tests.unit.marketplace.tiers.test_listings import BOOT_S, IDLE_S, OFFER

pytestmark = pytest.mark.django_db
GRANT = 100_000_000


@pytest.fixture
def listed(zone: Zone, backend: MemoryBackend) -> Node:
    """What the last machine measured is on sale from 100 s on, and none runs."""
    backend.offered = (OFFER,)
    tiers(zone, serverless_cap=0, serverful_cap=1, sells_offers=True)
    ZoneTiers.objects.update(idle_s=IDLE_S)
    tick(0)
    backend.join(backend.only(), now=at(BOOT_S))
    for seconds in (BOOT_S, 20, 50, 60, 70, 100):
        tick(seconds)
    return Node.objects.get(status="offered")


@pytest.fixture
def owner() -> Organisation:
    return builders.organisation(usd="100")


def buy(zone: Zone, owner: Organisation, *, seconds: float) -> Job:
    bid = market_builders.bid(owner, zone, now=at(seconds))
    decide_pending_bids(zone=zone, now=at(seconds))
    bid.refresh_from_db()
    assert bid.status == BidStatus.ADMITTED
    return Job.objects.get(bid_id=bid.pk)


def cancel(zone: Zone, job: Job, *, seconds: float) -> None:
    cancel_job(job=job, cancelled_by=None, now=at(seconds))
    settle_finished(now=at(seconds))
    refresh_zone(zone=zone, now=at(seconds))


def waste(zone: Zone, backend: MemoryBackend, owner: Organisation, *, seconds: float) -> None:
    """A job that is cancelled while its machine boots, which is then given back."""
    job = buy(zone, owner, seconds=seconds)
    tick(seconds + 16)
    machine = backend.only()
    cancel(zone, job, seconds=seconds + 18)
    backend.join(machine, now=at(seconds + 16 + BOOT_S))
    for after in (24, 40, 60, 80, 100):
        tick(seconds + after)
    assert not backend.running


def refuse(zone: Zone, owner: Organisation, *, seconds: float) -> Conflict:
    """The refusal of a bid, of which nothing is stored or held."""
    before = Bid.objects.count(), get_wallet(organisation=owner)
    with pytest.raises(Conflict) as refusal:
        market_builders.bid(owner, zone, now=at(seconds))
    assert (Bid.objects.count(), get_wallet(organisation=owner)) == before
    error = refusal.value
    assert (error.code, error.status, error.param) == ("boots_wasted", 409, "zone")
    return error


def test_the_start_of_a_machine_for_a_job_that_is_cancelled_counts(zone, listed, backend, owner):
    job = buy(zone, owner, seconds=102)
    bid = Bid.objects.get(pk=job.bid_id)
    paid = bid.payment_micros
    tick(118)
    cancel(zone, job, seconds=120)
    assert list_wasted_boots(organisation_id=owner.pk, now=at(121)) == [at(118)]
    # It pays its fee, as for any job that is cancelled, and gets the rest back.
    kept = paid * bid.reservation_fee_percent // 100
    assert get_wallet(organisation=owner).available_micros == GRANT - kept
    other = builders.organisation()
    assert list_wasted_boots(organisation_id=other.pk, now=at(121)) == []
    day = timedelta(days=1)
    assert list_wasted_boots(organisation_id=owner.pk, now=at(118) + day) == []


def test_who_wasted_too_many_bids_again_once_a_day_is_over(zone, listed, backend, owner, settings):
    settings.CANCELLED_BOOTS_A_DAY = 2
    waste(zone, backend, owner, seconds=102)
    waste(zone, backend, owner, seconds=302)
    started = list_wasted_boots(organisation_id=owner.pk, now=at(500))
    assert started == [at(118), at(318)]
    assert refuse(zone, owner, seconds=500).message == (
        "The market started 2 machines in 24 hours for jobs that your organisation then cancelled; "
        "it pays for no more. This zone sells machines that would have to be started. Bid here "
        "again from 03 March, 09:01 UTC on."
    )
    # Others buy.
    buy(zone, builders.organisation(usd="100"), seconds=501)


def test_a_limit_of_one_more_leaves_the_bid(zone, listed, backend, owner, settings):
    settings.CANCELLED_BOOTS_A_DAY = 2
    waste(zone, backend, owner, seconds=102)
    assert buy(zone, owner, seconds=302).bid_id


def test_where_only_machines_that_run_are_sold_it_bids_on(zone, listed, backend, owner, settings):
    settings.CANCELLED_BOOTS_A_DAY = 1
    waste(zone, backend, owner, seconds=102)
    refuse(zone, owner, seconds=302)
    ZoneTiers.objects.update(sells_offers=False)
    tick(303)
    tick(305)
    market_builders.node(zone, last_heartbeat_at=at(305))
    refresh_zone(zone=zone, now=at(306))
    assert buy(zone, owner, seconds=306).bid_id


def test_a_sweep_of_jobs_is_refused_whole(zone, listed, backend, owner, settings):
    settings.CANCELLED_BOOTS_A_DAY = 1
    waste(zone, backend, owner, seconds=102)
    asked: dict[str, Any] = market_builders.job_terms() | {
        "organisation": owner,
        "placed_by": builders.owner_of(owner),
        "zone": zone,
        "dataset": market_builders.dataset(owner, zone),
        "name": "a sweep",
        "price_micros": 5_000_000,
        "deadline_at": at(500),
        "all_or_none": True,
        "sweep": {"training.learning_rate": [1e-3, 2e-3]},
        "idempotency_key": None,
    }
    with pytest.raises(Conflict) as refusal:
        place_bundle(asked=NewBundle(**asked), now=at(302))
    assert refusal.value.code == "boots_wasted"
    assert Bid.objects.count() == 1


@pytest.mark.parametrize("when", ["before", "others", "lost", "ran"])
def test_a_start_that_was_not_wasted_by_the_owner_does_not_count(
    zone, listed, backend, owner, when
):
    job = buy(zone, owner, seconds=102)
    if when == "before":
        # Nothing was started for it.
        cancel(zone, job, seconds=110)
        tick(118)
    tick(118)
    if when == "others":
        buy(zone, builders.organisation(usd="100"), seconds=119)
        cancel(zone, job, seconds=120)
    elif when == "lost":
        # The machine did not come up; the job would have gone on elsewhere.
        backend.running.clear()
        tick(160)
        refresh_zone(zone=zone, now=at(161))
        cancel(zone, job, seconds=162)
    elif when == "ran":
        backend.join(backend.only(), now=at(127))
        tick(128)
        tick(131)
        cancel(zone, job, seconds=142)
    assert list_wasted_boots(organisation_id=owner.pk, now=at(170)) == []
