"""Warm offers: when there is one, for how much, and for how many bids."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.place import NewBid, PlacedBid, place_bids
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.release_unused import give_back_spare_cells
from marketplace.auction.models import Bid, Reservation
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import UserError
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots, record_progress
from marketplace.payments.selectors import get_wallet
from marketplace.warm.models import Donor, Offer, Probe
from marketplace.warm.offers import OBSERVED_FOR, Outlook, _list_observed, sweep_offers
from scheduler.merging.warm_starts import Likeness
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
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

pytestmark = pytest.mark.django_db


def test_a_second_job_on_the_same_rows_is_sold_less_work_without_a_probe(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    earlier = finished(owner, zone, data=data)
    offered = quote(owner, zone, data)
    start = offered.measured.start
    assert (offered.outlook, start.kind, start.job_id) == (Outlook.OFFERED, "own", earlier.pk)
    assert not Probe.objects.exists()
    assert (start.steps, start.scale, start.royalty_micros) == (4, 1.0, 0)
    # A tenth of the work: one cell instead of three.
    assert (offered.price_micros, offered.cold_price_micros) == (100_000, 300_000)
    assert round(offered.saved_share, 3) == 0.667
    # Asked again, it is the same offer.
    assert quote(owner, zone, data).measured.start == start
    bid, job = bid_warm(owner, zone, data, offered)
    assert (bid.payment_micros, bid.cold_price_micros) == (100_000, 300_000)
    assert job.start.target_loss == 1.0


def test_slots_for_the_worst_case_are_reserved_and_given_back_once_the_run_is_ahead(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    bid, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    # Paid for one slot; three are what the job takes without a warm start.
    assert bid.payment_micros == 100_000
    assert [slot for slot, _ in job.cells] == [105, 106, 107]
    now = market.slot_at(zone, 105)
    dispatch_slots(now=now)
    held = market.open_slice(job)
    for seq, loss in ((1, 1.01), (2, 1.0)):
        event = build.event(seq, step=3, total_steps=4, valid_loss=loss)
        record_progress(node=held.node, report=build.report(held, event), now=now)
        assert give_back_spare_cells(now=now) == (loss == 1.0)
    job.refresh_from_db()
    # The present slot, and one more for the last step.
    assert [slot for slot, _ in job.cells] == [105, 106]
    kept = Reservation.objects.filter(bid=bid, released_at=None).order_by("slot")
    assert list(kept.values_list("slot", flat=True)) == [105, 106]
    assert give_back_spare_cells(now=now) == 0
    assert verify_zone(zone).problems == []


def test_slots_given_back_one_after_another_are_one_line_of_the_history(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    earlier = market.bid(owner, zone, data=data, epochs=16)
    decide_pending_bids(zone=zone, now=NOW)
    ended(Job.objects.get(bid_id=earlier.pk), zone)
    settle_finished(now=LATER)
    offered = quote(owner, zone, data, **market.job_terms(epochs=16))
    model = f"warm:{offered.measured.start.offer_id}"
    bid = market.bid(owner, zone, data=data, model=model, epochs=16, now=LATER)
    decide_pending_bids(zone=zone, now=LATER)
    job = Job.objects.get(bid_id=bid.pk)
    now = market.slot_at(zone, 105)
    dispatch_slots(now=now)
    held = market.open_slice(job)
    left = []
    for seq, step in enumerate((1, 12, 20), start=1):
        event = build.event(seq, step=step, total_steps=job.start.steps, valid_loss=1.0)
        record_progress(node=held.node, report=build.report(held, event), now=now)
        give_back_spare_cells(now=now)
        left.append(Reservation.objects.filter(bid=bid, released_at=None).count())
    assert left == [3, 2, 1]
    assert job.events.filter(message__contains="given back").count() == 1
    assert verify_zone(zone).problems == []


def test_an_offer_serves_one_bid(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    offered = quote(owner, zone, data)
    first = bid_for_offer(owner, zone, data, offered)
    held = get_wallet(organisation=owner).held_micros
    with pytest.raises(UserError) as caught:
        bid_for_offer(owner, zone, data, offered)
    assert caught.value.code == "offer_ended"
    assert "Another bid of yours is for this warm start already" in str(caught.value)
    assert get_wallet(organisation=owner).held_micros == held
    assert Bid.objects.filter(terms__start__offer_id=offered.measured.start.offer_id).get() == first
    # Another quote is for another offer.
    again = quote(owner, zone, data)
    assert again.measured.start.offer_id != offered.measured.start.offer_id
    assert again.price_micros == offered.price_micros


def test_of_two_bids_for_one_offer_in_one_batch_the_first_that_can_be_paid_has_it(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    offered = quote(owner, zone, data)
    asked = [
        NewBid(
            organisation=owner,
            placed_by=None,
            zone=zone,
            dataset=data,
            name="warm",
            price_micros=price_micros,
            deadline_at=offered.deadline_at,
            idempotency_key=None,
            model=f"warm:{offered.measured.start.offer_id}",
            **market.job_terms(**TRAINING),
        )
        for price_micros in (60_000_000, 1_000_000, 1_000_000)
    ]
    poor, placed, late = place_bids(asked=asked, now=LATER)
    assert isinstance(poor, UserError)
    assert poor.code == "insufficient_funds"
    assert isinstance(placed, PlacedBid)
    assert isinstance(late, UserError)
    assert late.code == "offer_ended"
    assert Offer.objects.get().bid_id == placed.bid.pk


def test_open_offers_are_limited_and_swept_when_no_bid_names_them(zone, owner, monkeypatch):
    monkeypatch.setattr("marketplace.warm.offers.OPEN_MAX", 2)
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    taken = quote(owner, zone, data)
    bid_for_offer(owner, zone, data, taken)
    for seed, outlook in ((1, "offered"), (2, "offered"), (3, "none"), (2, "offered")):
        terms = market.job_terms(**TRAINING, seed=seed)
        assert quote(owner, zone, data, **terms).outlook == outlook
    assert Offer.objects.count() == 3
    assert sweep_offers(now=LATER + timedelta(hours=24)) == 0
    assert sweep_offers(now=LATER + timedelta(hours=26)) == 2
    assert Offer.objects.get().pk == taken.measured.start.offer_id


def test_one_organisation_causes_so_many_probes_an_hour_and_they_are_swept(
    zone, owner, giver, monkeypatch
):
    monkeypatch.setattr("marketplace.warm.offers.PROBES_MAX", 1)
    live_node(zone)
    _, data = ask_others(owner, zone, giver)
    other = data_of(owner, zone, word="ticket")
    assert quote(owner, zone, other).outlook is Outlook.NONE
    assert Probe.objects.get().dataset == data
    assert sweep_offers(now=LATER + timedelta(hours=24)) == 0
    assert sweep_offers(now=LATER + timedelta(hours=25)) == 1


@pytest.mark.parametrize("how", ["refused", "cancelled"])
def test_an_offer_is_free_again_when_its_bid_does_not_win(zone, owner, how):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    offered = quote(owner, zone, data)
    lost = bid_for_offer(owner, zone, data, offered, price_micros=1_000)
    if how == "cancelled":
        cancel_bid(bid=lost, now=LATER)
    else:
        decide_pending_bids(zone=zone, now=LATER)
    lost.refresh_from_db()
    assert lost.status == how
    assert quote(owner, zone, data).measured.start == offered.measured.start
    won = bid_for_offer(owner, zone, data, offered)
    decide_pending_bids(zone=zone, now=LATER)
    won.refresh_from_db()
    assert (won.status, Offer.objects.get().bid_id) == ("admitted", won.pk)


def test_of_two_bids_in_one_batch_the_second_counts_what_the_first_may_cost(zone, owner, settings):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    asked = []
    for seed in (1, 2):
        terms = market.job_terms(**TRAINING, seed=seed)
        start = quote(owner, zone, data, **terms).measured.start
        asked.append(
            NewBid(
                organisation=owner,
                placed_by=None,
                zone=zone,
                dataset=data,
                name="warm",
                price_micros=1_000_000,
                deadline_at=market.slot_at(zone, 130),
                idempotency_key=None,
                model=f"warm:{start.offer_id}",
                **terms,
            )
        )
    settings.HOUSE_BEARS_MICROS_PER_DAY = Offer.objects.latest("made_at").risk_micros
    first, second = place_bids(asked=asked, now=LATER)
    assert isinstance(first, PlacedBid)
    assert isinstance(second, UserError)
    assert "your other warm starts must end first" in str(second)
    assert [bid.pk for bid in Bid.objects.filter(terms__start__kind__isnull=False)] == [
        first.bid.pk
    ]


def test_an_own_adapter_that_went_over_its_rows_less_often_is_not_used(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    longer = market.job_terms(epochs=4)
    assert quote(owner, zone, data, **longer).outlook is Outlook.NONE
    # Early stopping says that more passes would not have helped.
    Job.objects.update(stopped_early=True)
    assert quote(owner, zone, data, **longer).outlook is Outlook.OFFERED


def test_a_given_donor_that_went_over_its_rows_less_often_is_not_used(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    longer = market.job_terms(epochs=4)
    assert quote(owner, zone, data, **longer).outlook is Outlook.NONE
    assert quote(owner, zone, data).outlook is Outlook.OFFERED
    # Nor is one of another rank, which has no node asked.
    asked = Probe.objects.count()
    wider = {"adapter": {"rank": 16, "alpha": 32.0, "dropout": 0.0}}
    assert quote(owner, zone, data, **wider).outlook is Outlook.NONE
    # Nor for a job on another base model.
    other = market.zone()
    live_node(other)
    elsewhere = data_of(owner, other)
    assert quote(owner, other, elsewhere).outlook is Outlook.NONE
    assert Probe.objects.count() == asked


def test_no_organisation_makes_the_price_of_a_zones_starts_alone(zone, owner, giver):
    live_node(zone)
    donor = Donor.objects.get(job=finished(giver, zone))

    def measured(organisation, count, share):
        Offer.objects.bulk_create(
            Offer(
                organisation=organisation,
                zone=zone,
                dataset=donor.job.dataset,
                donor=donor,
                settings_hash="",
                kind="donor",
                likeness=Likeness.RELATED,
                scale=1.0,
                target_loss=1.0,
                steps=1,
                total_steps=2,
                units=1,
                cold_units=2,
                royalty_micros=0,
                made_at=NOW,
                expires_at=NOW,
                needed_share=share,
                measured_at=LATER + timedelta(seconds=number),
            )
            for number in range(count)
        )

    measured(giver, 5, 0.6)
    measured(owner, 60, 0.05)
    soon = LATER + timedelta(minutes=2)
    found = _list_observed(zone, Likeness.RELATED, now=soon)
    assert sorted(found) == [0.05] * 10 + [0.6] * 5
    assert _list_observed(zone, Likeness.RELATED, of=owner, now=soon) == [0.05] * 50


def test_a_zone_whose_starts_fell_behind_offers_them_again_once_these_are_old(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    donor = Donor.objects.get(job=finished(owner, zone, data=data))
    stranger = builders.organisation(usd="50")
    Offer.objects.bulk_create(
        Offer(
            organisation=stranger,
            zone=zone,
            dataset=data,
            donor=donor,
            settings_hash="",
            kind="own",
            likeness=Likeness.SAME_DATA,
            scale=1.0,
            target_loss=1.0,
            steps=1,
            total_steps=2,
            units=1,
            cold_units=2,
            royalty_micros=0,
            made_at=NOW,
            expires_at=NOW,
            needed_share=2.0,
            measured_at=NOW,
        )
        for _ in range(10)
    )
    assert quote(owner, zone, data).outlook is Outlook.NONE
    Offer.objects.update(measured_at=LATER - OBSERVED_FOR)
    assert quote(owner, zone, data).outlook is Outlook.OFFERED
