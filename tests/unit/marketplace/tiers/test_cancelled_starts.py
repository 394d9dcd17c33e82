"""A machine that was started for a job alone is paid for by the owner who ends the job."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import Organisation
from marketplace.auction.cancelling import cancel_sold_job, quote_cancelling
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_house_balances, get_wallet
from marketplace.tiers.models import ZoneTiers
from tests import builders, market_builders
from tests.job_builders import at
from tests.unit.marketplace.tiers.backends import MemoryBackend, tiers
from tests.unit.marketplace.tiers.handoff import tick
from tests.unit.marketplace.tiers.test_offer_inventory import BOOT_S, IDLE_S, OFFER

pytestmark = pytest.mark.django_db
GRANT = 100_000_000
#: A quarter of what a slot costs on a machine that is not rented yet.
FIRST_SLOT = 1050


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


def buy(zone: Zone, owner: Organisation, *, seconds: float) -> Bid:
    """A job of four slots on a quarter of a machine."""
    bid = market_builders.bid(owner, zone, epochs=4, now=at(seconds))
    decide_pending_bids(zone=zone, now=at(seconds))
    bid.refresh_from_db()
    assert bid.payment_micros == 4 * FIRST_SLOT
    return bid


def cancel(zone: Zone, bid: Bid, *, seconds: float) -> int:
    """Cancel a job and give what it pays, which is what its page said just before."""
    job = Job.objects.get(bid_id=bid.pk)
    said = quote_cancelling(bid=bid, job=job, now=at(seconds))
    cancel_job(job=job, cancelled_by=None, now=at(seconds))
    settle_finished(now=at(seconds))
    refresh_zone(zone=zone, now=at(seconds))
    bid.refresh_from_db()
    assert bid.refund_micros == said.refund_micros
    return bid.paid_micros


def test_a_job_cancelled_after_a_machine_was_started_for_it_pays_its_first_slot(
    zone, listed, owner
):
    bid = buy(zone, owner, seconds=102)
    tick(118)
    assert cancel(zone, bid, seconds=120) == FIRST_SLOT
    assert get_wallet(organisation=owner).available_micros == GRANT - FIRST_SLOT
    assert get_house_balances()["congestion"] == FIRST_SLOT
    assert check_ledger().balanced


@pytest.mark.parametrize("when", ["before", "others", "lost"])
def test_a_start_that_was_not_for_the_job_alone_costs_it_nothing(
    zone, listed, backend, owner, when
):
    bid = buy(zone, owner, seconds=102)
    seconds = 110
    if when == "others":
        other = buy(zone, builders.organisation(usd="100"), seconds=103)
    if when != "before":
        tick(118)
        seconds = 120
    if when == "lost":
        # The machine did not come up.
        backend.running.clear()
        tick(160)
        refresh_zone(zone=zone, now=at(161))
        seconds = 162
    # What the market took away goes back whole.
    assert cancel(zone, bid, seconds=seconds) == (0 if when == "lost" else FIRST_SLOT * 4 // 50)
    if when == "others":
        # The one that is left has it for itself.
        assert cancel(zone, other, seconds=121) == FIRST_SLOT


def test_the_second_of_two_jobs_of_one_owner_gets_what_it_was_shown(zone, listed, owner):
    bids = [buy(zone, owner, seconds=seconds) for seconds in (102, 103)]
    tick(118)
    shown = []
    for seconds, bid in enumerate(bids, 120):
        job = Job.objects.get(bid_id=bid.pk)
        shown.append(quote_cancelling(bid=bid, job=job, now=at(seconds)).refund_micros)
        cancel_sold_job(job=job, cancelled_by=None, at_least_micros=shown[-1], now=at(seconds))
    assert settle_finished(now=at(122)) == 2
    paid = Bid.objects.filter(pk__in=[bid.pk for bid in bids]).order_by("created_at")
    # Whoever goes last pays for the machine.
    assert [bid.refund_micros for bid in paid] == shown == [98 * 42, 3 * FIRST_SLOT]
