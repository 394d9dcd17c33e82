"""Warm starts in the market: who may begin with what, for how much, and what becomes of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.place import NewBid, PlacedBid, place_bids
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.spare_cells import give_back_spare_cells
from marketplace.auction.models import Bid, Reservation
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.models import Node
from marketplace.jobs.models import Artifact, Dataset, Job, MetricPoint, NodePlan
from marketplace.jobs.selectors import START_BLOB, find_lease_blob
from marketplace.jobs.services import dispatch_slots, record_progress
from marketplace.jobs.starts import Drop
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_earnings, get_house_balances, get_wallet
from marketplace.warm.consents import set_adapter_consent, set_consent, set_dataset_consent
from marketplace.warm.models import Donor, Offer, Overrun, Probe
from marketplace.warm.offers import OBSERVED_FOR, Outlook, _list_observed, sweep_offers
from marketplace.warm.overruns import find_provider_limit, may_be_offered
from marketplace.warm.probes import PROBE_S, find_probe_blob, record_probe_result
from scheduler.merging.warm_starts import Likeness
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.audits import alter_row
from tests.builders import NOW
from tests.warm_builders import (
    LATER,
    TRAINING,
    answer,
    ask_others,
    bid_warm,
    data_of,
    ended,
    finished,
    live_node,
    quote,
)
from workers.protocol.messages import SlotPlan
from workers.protocol.probes import ProbeResult
from workers.protocol.reports import SliceEnd
from workers.protocol.wire import from_json

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


def bid_for(owner, zone, data, offered, **terms):
    model = f"warm:{offered.measured.start.offer_id}"
    return market.bid(owner, zone, data=data, model=model, now=LATER, **TRAINING, **terms)


def test_an_offer_serves_one_bid(zone, owner):
    live_node(zone)
    data = data_of(owner, zone)
    finished(owner, zone, data=data)
    offered = quote(owner, zone, data)
    first = bid_for(owner, zone, data, offered)
    held = get_wallet(organisation=owner).held_micros
    with pytest.raises(UserError) as caught:
        bid_for(owner, zone, data, offered)
    assert caught.value.code == "offer_ended"
    assert "Another bid of yours is for this warm start already" in str(caught.value)
    assert get_wallet(organisation=owner).held_micros == held
    assert Bid.objects.filter(start__offer_id=offered.measured.start.offer_id).get() == first
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
    bid_for(owner, zone, data, taken)
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
    lost = bid_for(owner, zone, data, offered, price_micros=1_000)
    if how == "cancelled":
        cancel_bid(bid=lost, now=LATER)
    else:
        decide_pending_bids(zone=zone, now=LATER)
    lost.refresh_from_db()
    assert lost.status == how
    assert quote(owner, zone, data).measured.start == offered.measured.start
    won = bid_for(owner, zone, data, offered)
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
    assert [bid.pk for bid in Bid.objects.filter(start__isnull=False)] == [first.bid.pk]


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


def test_a_donor_that_knows_the_rows_lowers_the_price_and_earns_a_royalty(zone, owner, giver):
    node = live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    probe = answer(node, 4.0, 0.4)
    assert len(probe.rows) == 16
    assert [one.scale for one in probe.adapters] == [1.0]
    offered = quote(owner, zone, data)
    start = offered.measured.start
    assert (offered.outlook, start.kind, start.job_id) == (Outlook.OFFERED, "donor", donor.pk)
    assert offered.price_micros < offered.cold_price_micros
    assert offered.parts.vendor == start.royalty_micros > 0
    bid, job = bid_warm(owner, zone, data, offered)
    assert bid.payment_micros == offered.price_micros
    assert verify_zone(zone).problems == []
    dispatch_slots(now=market.slot_at(zone, job.cells[0][0]))
    held = market.open_slice(job)
    MetricPoint.objects.create(
        job=job, slice=held, seq=1, at=NOW, step=4, epoch=0.1, valid_loss=0.3
    )
    ended(job, zone, step=start.steps, total_steps=start.steps, valid_loss_after=0.3)
    now = market.slot_at(zone, 110)
    assert settle_finished(now=now) == 2
    earning = Earning.objects.get(kind="royalty")
    assert (earning.organisation, earning.amount_micros) == (giver, start.royalty_micros)
    offer = Offer.objects.get(pk=start.offer_id)
    assert offer.job == job
    # Four steps of eight rows.
    assert offer.needed_share == 32 / 270
    assert offer.royalty_paid_micros == start.royalty_micros
    assert offer.saved_micros == 300_000 - bid.payment_micros
    bid.refresh_from_db()
    assert bid.refund_micros == 0
    assert check_ledger().balanced


def test_a_royalty_other_than_that_of_the_log_is_found(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    bid, _ = bid_warm(owner, zone, data, quote(owner, zone, data))
    paid = bid.royalty_micros
    alter_row(
        "UPDATE auction_bid SET start = jsonb_set(start, '{royalty_micros}', %s) WHERE id = %s",
        str(paid + 1),
        bid.pk,
    )
    [problem] = verify_zone(zone).problems
    assert f"royalty_micros is {paid + 1}, the log has {paid}" in problem


def test_without_consent_on_both_sides_nobody_is_asked(zone, owner, giver):
    live_node(zone)
    donor = finished(giver, zone)
    data = data_of(owner, zone)
    assert quote(owner, zone, data).outlook is Outlook.NONE
    set_consent(organisation=owner, uses_donors=True, gives_adapters=True, now=NOW)
    set_dataset_consent(dataset=data, uses_donors=False, gives_adapters=None, now=NOW)
    assert quote(owner, zone, data).outlook is Outlook.NONE
    set_dataset_consent(dataset=data, uses_donors=None, gives_adapters=None, now=NOW)
    set_adapter_consent(organisation=giver, job_id=donor.pk, is_given=False, now=NOW)
    other = market.zone()
    live_node(other)
    assert quote(owner, other, data_of(owner, other)).outlook is Outlook.NONE
    assert not Probe.objects.exists()
    with pytest.raises(NotFound):
        set_adapter_consent(organisation=owner, job_id=donor.pk, is_given=True, now=NOW)


def test_an_adapter_that_says_its_rows_by_heart_is_nobodys_donor_but_its_owners(zone, owner, giver):
    live_node(zone)
    data = data_of(giver, zone)
    finished(giver, zone, data=data, memorised=2)
    assert Donor.objects.get().has_memorised
    set_consent(organisation=owner, uses_donors=True, gives_adapters=False, now=NOW)
    assert quote(owner, zone, data_of(owner, zone)).outlook is Outlook.NONE
    assert quote(giver, zone, data).outlook is Outlook.OFFERED


@pytest.mark.parametrize("how", ["adapter", "data set", "organisation"])
def test_a_withdrawal_ends_offers_and_leaves_no_trace_of_the_bid(zone, owner, giver, how):
    node = live_node(zone)
    donor, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    offer_id = quote(owner, zone, data).measured.start.offer_id
    if how == "adapter":
        set_adapter_consent(organisation=giver, job_id=donor.pk, is_given=False, now=NOW)
    elif how == "data set":
        set_dataset_consent(dataset=donor.dataset, uses_donors=None, gives_adapters=False, now=NOW)
    else:
        set_consent(organisation=giver, uses_donors=False, gives_adapters=False, now=NOW)
    bids = Bid.objects.count()
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, data=data, model=f"warm:{offer_id}", now=LATER, **TRAINING)
    assert caught.value.code == "offer_ended"
    assert Bid.objects.count() == bids
    # The quote is cold again.
    again = quote(owner, zone, data)
    assert (again.outlook, again.measured.start) == (Outlook.NONE, None)


def test_an_offer_holds_for_its_settings_its_owner_and_its_time(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    model = f"warm:{quote(owner, zone, data).measured.start.offer_id}"
    stranger = builders.organisation(usd="50")
    for terms in (
        {"owner": owner, "data": data, "epochs": 4, "now": LATER},
        {"owner": stranger, "data": data_of(stranger, zone), "epochs": 3, "now": LATER},
        {"owner": owner, "data": data, "epochs": 3, "now": LATER + timedelta(hours=1)},
    ):
        who = terms.pop("owner")
        with pytest.raises(UserError) as caught:
            market.bid(who, zone, model=model, **terms)
        assert caught.value.code == "offer_ended"


@pytest.mark.parametrize(
    ("base", "losses"), [(4.0, [3.9]), (4.0, [None]), (None, [1.0]), (4.0, [float("inf")])]
)
def test_a_donor_that_knows_no_more_than_the_base_is_not_taken(zone, owner, giver, base, losses):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, base, *losses)
    found = quote(owner, zone, data)
    assert (found.outlook, found.measured.start, found.cold_price_micros) == (
        Outlook.NONE, None, None,
    )  # fmt: skip


def test_an_earlier_run_with_other_settings_does_not_say_where_this_job_would_end(zone, owner):
    node = live_node(zone)
    data = data_of(owner, zone)
    # It learnt a tenth as quickly: its loss would be an easy target.
    finished(owner, zone, data=data, **market.job_terms(**TRAINING, learning_rate=2e-5))
    terms = market.job_terms(**TRAINING, learning_rate=2e-4)
    asked = quote(owner, zone, data, **terms)
    assert asked.outlook is Outlook.ASKED
    answer(node, 4.0, 0.4)
    found = quote(owner, zone, data, **terms)
    # As near as it is, it would be sold as a related one is, which takes off no slot here.
    offer = Offer.objects.get()
    assert (offer.likeness, offer.steps, offer.scale) == (Likeness.RELATED, 30, 0.5)
    assert (found.outlook, found.measured.start) == (Outlook.NONE, None)


def test_a_probe_without_an_answer_is_asked_again_after_a_minute(zone, owner, giver):
    live_node(zone)
    _, data = ask_others(owner, zone, giver)
    for seconds, outlook in ((11, Outlook.NONE), (59, Outlook.NONE), (61, Outlook.ASKED)):
        now = LATER + timedelta(seconds=seconds)
        Node.objects.update(last_heartbeat_at=now)
        assert quote(owner, zone, data, now=now).outlook is outlook
    assert Probe.objects.count() == 2


def test_an_answer_that_comes_too_late_or_from_another_node_is_not_taken(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    late = LATER + timedelta(seconds=PROBE_S + 1)
    other = live_node(zone)
    probe = Probe.objects.get()
    with pytest.raises(NotFound):
        record_probe_result(node=other, result=ProbeResult(probe.token, 4.0), now=LATER)
    answer(node, 4.0, 1.0, now=late)
    probe.refresh_from_db()
    assert (probe.answered_at, probe.losses) == (None, [])
    assert quote(owner, zone, data, now=late).outlook is Outlook.NONE


def test_adapters_are_served_to_the_node_that_probes_them_and_until_its_time_is_over(
    zone, owner, giver
):
    node = live_node(zone)
    donor, _ = ask_others(owner, zone, giver)
    probe, name = Probe.objects.get(), Artifact.objects.get(job=donor).pk
    asked = {"token": probe.token, "name": name, "now": LATER}
    assert find_probe_blob(node=node, **asked).pk == name
    for change in (
        {"node": live_node(zone)},
        {"name": "art_other"},
        {"now": LATER + timedelta(seconds=PROBE_S)},
    ):
        with pytest.raises(NotFound):
            find_probe_blob(**({"node": node} | asked | change))


def test_with_no_node_that_is_warm_the_quote_is_cold(zone, owner, giver):
    live_node(zone)
    finished(giver, zone)
    set_consent(organisation=owner, uses_donors=True, gives_adapters=False, now=NOW)
    data = data_of(owner, zone)
    silent = NOW + timedelta(hours=1)
    job = JobRequest(owner, zone, data, **market.job_terms(**TRAINING))
    found = make_quote(job, deadline_at=silent + timedelta(seconds=200), now=silent)
    assert found.outlook is Outlook.NONE
    assert not Probe.objects.exists()


def test_a_payment_above_the_cold_price_goes_back_out_of_the_royalty(zone, owner, giver):
    node = live_node(zone)
    _, data = ask_others(owner, zone, giver)
    answer(node, 4.0, 0.4)
    bid, job = bid_warm(owner, zone, data, quote(owner, zone, data))
    # As if prices had fallen between the quote and the decision.
    royalty = bid.royalty_micros
    Bid.objects.filter(pk=bid.pk).update(cold_price_micros=bid.payment_micros - royalty // 2)
    ended(job, zone, step=job.start.steps, total_steps=job.start.steps, valid_loss_after=0.3)
    settle_finished(now=market.slot_at(zone, 110))
    bid.refresh_from_db()
    assert bid.paid_micros == bid.cold_price_micros
    assert Earning.objects.get(kind="royalty").amount_micros == royalty - royalty // 2
    assert check_ledger().balanced


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
        bid_for(owner, zone, data, kept, **other_seed)
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
        bid_for(owner, zone, data, kept, **other_seed)
    assert caught.value.code == "offer_ended"
    other = builders.organisation(usd="50")
    assert may_be_offered(owner_id=other.pk, now=LATER)
    assert may_be_offered(owner_id=owner.pk, now=found.made_at + timedelta(days=30))
    assert find_provider_limit(provider_id=node.provider.organisation_id, now=LATER) == 0
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
    bid = bid_for(owner, zone, data, quote(owner, zone, data))
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
