"""Warm starts that were sold: those that fall behind, miss their target or lose their adapter."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.exposure import find_exposure_left
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import NotFound, UserError
from marketplace.jobs.models import Dataset, Job, NodePlan
from marketplace.jobs.selectors import START_BLOB, find_lease_blob
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_earnings, get_house_balances
from marketplace.warm.consents import set_adapter_consent, set_consent
from marketplace.warm.models import Offer, Overrun
from marketplace.warm.offers import Outlook
from marketplace.warm.overruns import may_be_offered
from tests import builders
from tests import market_builders as market
from tests.warm_builders import (
    LATER,
    TRAINING,
    answer,
    ask_others,
    bid_for_offer,
    bid_warm,
    data_of,
    ended,
    finished,
    live_node,
    quote,
)
from workers.protocol.messages import SlotPlan
from workers.protocol.reports import SliceEnd
from workers.protocol.starts import Drop
from workers.protocol.wire import from_json

pytestmark = pytest.mark.django_db


def test_a_start_that_falls_behind_costs_its_owner_nothing_and_its_node_is_paid_by_the_house(
    zone, owner
):
    node = live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    settle_finished(now=LATER)
    before = get_earnings(organisation=node.provider.organisation).pending_micros
    bid, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    assert bid.payment_micros == 100_000
    # It was at its target after all of its 36 steps instead of 4.
    ended(job, zone, valid_loss_after=1.0)
    settle_finished(now=market.slot_at(zone, 110))
    bid.refresh_from_db()
    assert bid.paid_micros == 100_000
    earned = get_earnings(organisation=node.provider.organisation).pending_micros - before
    assert earned == 100_000 * 270 // 32
    offer = Offer.objects.get()
    assert offer.needed_share == 1.0
    assert get_house_balances()["refunds"] == 100_000 - earned
    assert check_ledger().balanced
    # The next offer to this organisation is of more work.
    again = quote(owner, zone, data).measured.start
    assert again is None or again.steps > 4


def test_an_owner_for_whose_starts_the_house_paid_a_days_limit_is_sold_no_more_of_them(
    zone, owner, settings
):
    settings.HOUSE_BEARS_MICROS_PER_DAY = 500_000
    node = live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    settle_finished(now=LATER)
    before = get_earnings(organisation=node.provider.organisation).pending_micros
    other_seed = market.job_terms(**TRAINING, seed=1)
    kept = quote(owner, zone, data, **other_seed)
    assert kept.outlook is Outlook.OFFERED
    bid, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    # The start that runs may cost the house all of it: until it has ended there is no other.
    assert quote(owner, zone, data).outlook is Outlook.NONE
    with pytest.raises(UserError, match="too many of your starts fell behind"):
        bid_for_offer(owner, zone, data, kept, **other_seed)
    ended(job, zone, valid_loss_after=1.0)
    settle_finished(now=market.slot_at(zone, 110))
    earned = get_earnings(organisation=node.provider.organisation).pending_micros - before
    # What was sold, and of the 743,750 beyond it what the house still pays.
    assert earned == bid.payment_micros + 500_000
    found = Overrun.objects.get()
    assert (found.owner, found.provider, found.amount_micros) == (
        owner, node.provider.organisation, 500_000,
    )  # fmt: skip
    assert quote(owner, zone, data).outlook is Outlook.NONE
    with pytest.raises(UserError) as caught:
        bid_for_offer(owner, zone, data, kept, **other_seed)
    assert caught.value.code == "offer_ended"
    other = builders.organisation(usd="50")
    assert may_be_offered(owner_id=other.pk, now=LATER)
    assert may_be_offered(owner_id=owner.pk, now=found.made_at + timedelta(days=30))
    assert find_exposure_left(organisation_id=node.provider.organisation_id, now=LATER) == 0
    assert check_ledger().balanced


@pytest.mark.parametrize(("step", "loss"), [(4, 1.01), (4, None), (3, 0.5), (5, 0.5)])
def test_a_warm_start_above_its_target_or_before_its_steps_is_not_finished(zone, owner, step, loss):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    _, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    with pytest.raises(UserError) as caught:
        ended(job, zone, step=step, total_steps=4, valid_loss_after=loss)
    assert caught.value.code == "work_missing"


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_job_that_was_sold_a_start_and_has_not_begun_does_without_a_withdrawn_adapter(
    zone, owner, giver, is_decided
):
    node = live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    bid = bid_for_offer(owner, zone, data, quote(owner, zone, data))
    if is_decided:
        decide_pending_bids(zone=zone, now=LATER)
    set_adapter_consent(organisation=giver, job_id=donor.pk, is_given=False, now=LATER)
    decide_pending_bids(zone=zone, now=LATER)
    bid.refresh_from_db()
    job = Job.objects.get(bid_id=bid.pk)
    assert (job.start.dropped, job.start.sold_steps) == (Drop.WITHDRAWN, 0)
    now = market.slot_at(zone, job.cells[0][0])
    dispatch_slots(now=now)
    plan = from_json(SlotPlan, NodePlan.objects.filter(node=node).latest("pk").plan)
    assert plan.slices[0].job.warm_start is None
    with pytest.raises(NotFound):
        find_lease_blob(node=node, lease_token=plan.slices[0].lease_token, name=START_BLOB, now=now)
    # It does all of its steps, whatever its loss, at the price that was agreed.
    with pytest.raises(UserError, match="all of its 36 steps"):
        ended(job, zone, step=4, total_steps=4, valid_loss_after=0.1)
    ended(job, zone, valid_loss_after=2.0)
    settle_finished(now=market.slot_at(zone, 110))
    bid.refresh_from_db()
    assert bid.paid_micros == bid.payment_micros < bid.cold_price_micros
    assert not Earning.objects.filter(kind="royalty").exists()
    assert Offer.objects.get().needed_share is None
    assert Overrun.objects.get().owner_id == owner.pk
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_a_job_that_has_begun_goes_on_with_an_adapter_that_is_withdrawn_then(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    _, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    dispatch_slots(now=market.slot_at(zone, job.cells[0][0]))
    set_consent(organisation=giver, uses_donors=False, gives_adapters=False, now=LATER)
    job.refresh_from_db()
    assert job.start.dropped is None
    ended(job, zone, step=job.start.steps, total_steps=job.start.steps, valid_loss_after=0.1)
    settle_finished(now=market.slot_at(zone, 110))
    assert Earning.objects.get(kind="royalty").organisation_id == giver.pk


def test_a_start_above_its_target_after_all_steps_is_begun_again_cold_and_costs_its_owner_no_more(
    zone, owner, giver
):
    node = live_node(zone)
    ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    data = Dataset.objects.get(organisation=owner)
    bid, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    settle_finished(now=LATER)
    before = get_earnings(organisation=node.provider.organisation).pending_micros
    ended(job, zone, valid_loss_after=3.0)
    job.refresh_from_db()
    assert job.start.dropped is Drop.FELL_BEHIND
    assert (job.needs_replan, job.step, job.checkpoint_step) == (True, 0, 0)
    # In the next of its reserved slots it has begun again at once.
    again = market.slot_at(zone, job.cells[0][0] + 1)
    plan = from_json(SlotPlan, NodePlan.objects.filter(node=node).latest("pk").plan)
    assert plan.slices[0].job.warm_start is None
    market.end_slice(
        job, status=SliceEnd.FINISHED, now=again, valid_loss_before=4.0, valid_loss_after=1.5
    )
    job.refresh_from_db()
    settle_finished(now=market.slot_at(zone, 125))
    bid.refresh_from_db()
    assert job.status == "succeeded"
    assert bid.paid_micros == bid.payment_micros < bid.cold_price_micros
    # Both runs of the node are paid for, and the adapter that did harm earns nothing.
    sold = Offer.objects.get().units
    earned = get_earnings(organisation=node.provider.organisation).pending_micros - before
    assert earned == (bid.payment_micros - job.start.royalty_micros) * 540 // sold
    assert not Earning.objects.filter(kind="royalty").exists()
    assert Offer.objects.get().needed_share == 2.0
    assert check_ledger().balanced
