"""The rent of cells that were given back shortly before they began: whose it is."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import SimpleNamespace

import pytest

from marketplace.auction import resold
from marketplace.auction.book.engine_cache import build_entries, read_log_rows
from marketplace.auction.cancelling import CancelQuote, cancel_sold_job, quote_cancelling
from marketplace.auction.lane import ended_jobs
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, Reservation, Snapshot
from marketplace.auction.resold import settle_rents
from marketplace.auction.settlement import settle_finished
from marketplace.fleet.models import Node
from marketplace.jobs.models import EventKind, FaultOf, Job, SliceStatus
from marketplace.jobs.services import dispatch_slots, fail_job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning, EarningKind
from marketplace.payments.selectors import get_earnings, get_house_balances
from marketplace.tiers.profits import load_profit_report
from marketplace.vendors.models import Preparation
from marketplace.web.presenters.receipt import build_receipt
from scheduler.auction import Engine
from scheduler.auction.audit.give_backs import GiveBackAudit
from scheduler.auction.log.outcomes import SoldAgain
from scheduler.types import Cell
from tests import builders, vendor_builders
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.common.threads import at_once
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db

#: Of a price of 600,000 the rent is a half, and of that 98 % wait.
WAITS = 294_000


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def sold(owner, zone, **terms):
    bid = market.bid(owner, zone, epochs=3, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    return bid, Job.objects.get(bid_id=bid.pk)


def cancel_rented(zone, owner, node=None):
    """A job whose price is rent by half, cancelled before cells that begin soon, and settled."""
    market.price_rent(zone, node or market.node(zone))
    bid, job = sold(owner, zone)
    assert bid.payment_micros == 600_000
    shown = quote_cancelling(bid=bid, job=job, now=NOW)
    assert shown == CancelQuote(294_000, 306_000, 0, waits_micros=WAITS)
    cancel_sold_job(job=job, cancelled_by=None, at_least_micros=294_000, now=NOW)
    return bid, job


def begin(zone, *slots):
    for slot in slots:
        refresh_zone(zone=zone, now=market.slot_at(zone, slot))


def check_books():
    check = check_ledger()
    assert check.balanced, check


def check_log(zone):
    """Decide the log again; the test's own prices are of no solve, so ``verify_zone`` would end."""
    begun = Snapshot.objects.get(zone=zone, position=0)
    engine, audit = Engine.restore(json.loads(begun.state)), GiveBackAudit()
    for entry in build_entries(read_log_rows(LogEntry.objects.filter(zone=zone))):
        assert engine.apply(entry.event) == entry
        assert audit.find_problem(entry.event, entry.outcome) is None


def buy_all(owner, zone):
    for _ in range(4):
        other, _ = sold(owner, zone, slots=3)
        assert (other.payment_micros or 0) >= 600_000


def earned(node):
    return get_earnings(organisation=node.provider.organisation).pending_micros


def test_the_job_is_settled_at_once_and_its_rent_goes_back_as_its_cells_are_sold(zone, owner):
    bid, job = cancel_rented(zone, owner)
    # Nobody's pay waits.
    assert settle_finished(now=NOW) == 1
    bid.refresh_from_db()
    assert (bid.refund_micros, bid.rent_due_micros) == (294_000, WAITS)
    assert get_house_balances()["congestion"] == 306_000
    buy_all(owner, zone)
    begin(zone, 101)
    now = market.slot_at(zone, 102)
    # Of the other two cells the log says nothing yet.
    assert settle_rents(now=now) == 0
    begin(zone, 102, 103)
    assert (settle_rents(now=now), settle_rents(now=now)) == (1, 0)
    bid = Bid.objects.get(pk=bid.pk)
    assert (bid.refund_micros, bid.rent_due_micros) == (588_000, None)
    assert get_house_balances()["congestion"] == 12_000
    said = job.events.filter(kind=EventKind.REFUNDED).order_by("seq")
    assert [event.data["amount_micros"] for event in said] == [294_000, WAITS]
    receipt = build_receipt(bid, job=Job.objects.get(pk=job.pk))
    assert sum(micros for *_, micros in receipt.payees) == 600_000
    assert ("The house", "kept of the work that was not done", 12_000) in receipt.payees
    check_books()
    check_log(zone)


@pytest.mark.parametrize("fails", [False, True])
def test_buyers_that_need_their_cells_no_longer_pay_for_them_unless_the_house_failed_them(
    zone, owner, fails
):
    bid, _ = cancel_rented(zone, owner)
    settle_finished(now=NOW)
    buy_all(owner, zone)
    begin(zone, 101)
    now = market.slot_at(zone, 101)
    Node.objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    running = Job.objects.filter(slices__status=SliceStatus.OPEN).order_by("pk")
    assert running.count() == 4
    for job in running:
        if fails:
            fail_job(job=job, fault=FaultOf.SYSTEM, reason="It is gone.", now=now)
        else:
            # It was sold three cells.
            market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    refresh_zone(zone=zone, now=now)
    assert not Reservation.objects.filter(slot__gt=101, released_at=None).exists()
    shares = LogEntry.objects.filter(kind="CellsReleased").order_by("position")
    said = [json.loads(entry.event).get("paid_share", 0.0) for entry in shares]
    assert said == [0.0] + [0.0 if fails else 1.0] * 4
    begin(zone, 102, 103)
    assert settle_rents(now=market.slot_at(zone, 103)) == 1
    back = 98_000 if fails else WAITS
    assert Bid.objects.get(pk=bid.pk).refund_micros == 294_000 + back
    check_books()
    check_log(zone)


def test_the_provider_of_cells_that_nobody_bought_gets_what_it_asked(zone, owner):
    node = market.node(zone)
    bid, job = cancel_rented(zone, owner, node)
    settle_finished(now=NOW)
    begin(zone, 101, 102, 103)
    assert settle_rents(now=market.slot_at(zone, 103)) == 1
    bid = Bid.objects.get(pk=bid.pk)
    # It asked 300,000 for the room, and 294,000 of rent were kept.
    assert (bid.refund_micros, earned(node)) == (294_000, WAITS)
    assert get_house_balances()["congestion"] == 12_000
    [line] = Earning.objects.all()
    assert (line.kind, line.amount_micros) == (EarningKind.IDLE, WAITS)
    # The buyer's money may be contested as if work had been done for it.
    assert line.payable_at > line.accrued_at
    receipt = build_receipt(bid, job=Job.objects.get(pk=job.pk))
    name = node.provider.organisation.name
    assert (name, "its room stayed idle", WAITS) in receipt.payees
    assert sum(micros for *_, micros in receipt.payees) == 600_000
    check_books()


def test_of_a_cell_that_a_job_gave_back_twice_both_rents_count(zone, owner):
    """What its data did not need, and was planned there again before it ended."""
    bid, _ = cancel_rented(zone, owner)
    # Puts the cells on sale again.
    settle_finished(now=NOW)
    row = Reservation.objects.filter(bid=bid).order_by("slot").first()
    cell = Cell(row.slot, row.node_id)
    # The log answers each give-back by itself.
    first = SoldAgain(bid.pk, cell, waited=90_000, rent=40_000, unsold=row.samples)
    ended_jobs.note_sold_again([first, replace(first, waited=60_000, rent=0)])
    row.refresh_from_db()
    assert (row.waited_micros, row.resold_micros) == (150_000, 40_000)
    # No more than its provider asks for all of the room.
    assert row.idle_micros == row.operational_cost_micros == 100_000


@pytest.mark.parametrize(
    ("sold_early", "sold_late", "back"),
    [(0, 0, 0), (98_000, 0, 98_000), (0, 196_000, 108_000), (98_000, 196_000, 206_000)],
)
def test_cells_that_data_spared_and_later_ones_count_apart(
    zone, owner, sold_early, sold_late, back
):
    """What a machine's start leaves of the one rent is no part of the other."""
    bid, job = cancel_rented(zone, owner)
    settle_finished(now=NOW)
    rows = list(Reservation.objects.filter(bid=bid).order_by("slot"))
    Reservation.objects.filter(pk=rows[0].pk).update(released_at=NOW - timedelta(seconds=1))
    Preparation.objects.create(
        bid_id=bid.pk,
        job=job,
        source=job.dataset,
        wish={},
        rows_bound=1,
        vendor=vendor_builders.vendor(zone),
        price_micros=0,
        ready_slot=0,
        due_at=NOW,
        created_at=NOW,
        concluded_at=NOW - timedelta(seconds=1),
        waits_micros=98_000,
    )
    # A machine that was started for the job takes 88,000 of the rest.
    Bid.objects.filter(pk=bid.pk).update(rent_due_micros=98_000 + 108_000)
    sold = (sold_early, sold_late // 2, sold_late // 2)
    said = [
        SoldAgain(bid.pk, Cell(row.slot, row.node_id), waited=98_000, rent=rent, unsold=0.0)
        for row, rent in zip(rows, sold, strict=True)
    ]
    ended_jobs.note_sold_again(said)
    assert resold.settle_rent(job=job, now=NOW)
    assert Bid.objects.get(pk=bid.pk).refund_micros == 294_000 + back
    check_books()


def test_a_provider_gets_no_more_than_it_asks_for_its_idle_room(zone, owner):
    node = market.node(zone)
    bid, _ = cancel_rented(zone, owner, node)
    settle_finished(now=NOW)
    Reservation.objects.filter(bid=bid).update(operational_cost_micros=50_000)
    begin(zone, 101, 102, 103)
    settle_rents(now=market.slot_at(zone, 103))
    assert (earned(node), get_house_balances()["congestion"]) == (150_000, 156_000)
    check_books()


def test_an_owner_gets_nothing_for_its_own_idle_cells(zone):
    node = market.node(zone)
    owner = node.provider.organisation
    builders.fund_wallet(owner, usd="10")
    bid, _ = cancel_rented(zone, owner, node)
    settle_finished(now=NOW)
    begin(zone, 101, 102, 103)
    assert settle_rents(now=market.slot_at(zone, 103)) == 1
    assert (earned(node), get_house_balances()["congestion"]) == (0, 306_000)
    assert Bid.objects.get(pk=bid.pk).rent_due_micros is None


def test_rent_that_stays_with_the_house_is_no_profit_of_its(zone, owner):
    node = market.node(zone)
    person = builders.owner_of(node.provider.organisation)
    type(person).objects.filter(pk=person.pk).update(is_operator=True)
    cancel_rented(zone, owner, node)
    settle_finished(now=NOW)
    begin(zone, 101, 102, 103)
    settle_rents(now=market.slot_at(zone, 103))
    assert (earned(node), get_house_balances()["congestion"]) == (0, 306_000)
    report = load_profit_report(month=f"{NOW:%Y-%m}")
    amounts = {line.text: line.total_micros for line in report.lines}
    # Grants are what the owner's demo money cost.
    assert {text: n for text, n in amounts.items() if "Granted" not in text and n} == {}


@pytest.mark.parametrize("turn", [101, 102])
def test_what_goes_back_does_not_depend_on_how_late_the_market_looked(zone, owner, turn):
    bid, _ = cancel_rented(zone, owner)
    begin(zone, *range(turn, 104))
    now = market.slot_at(zone, 103)
    settle_finished(now=now)
    settle_rents(now=now)
    bid = Bid.objects.get(pk=bid.pk)
    rows = Reservation.objects.filter(bid=bid).order_by("slot")
    # Of the next slot's cell nothing goes back, of one that a late market never had on sale all.
    late = 0 if turn == 101 else 98_000
    assert list(rows.values_list("waited_micros", flat=True)) == [98_000] * 3
    assert list(rows.values_list("resold_micros", flat=True)) == [0, late, 0]


def test_a_burst_of_cancellations_does_not_get_its_rent_back_by_being_many(
    zone, owner, monkeypatch
):
    """What a turn leaves to the next one goes by when its owner gave it back."""
    market.price_rent(zone, market.node(zone))
    bids = [sold(owner, zone) for _ in range(3)]
    for _, job in bids:
        cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    # A turn takes one of them.
    ticks = count(step=0.6)
    monkeypatch.setattr(ended_jobs, "RELEASE_FOR_S", 1.0)
    monkeypatch.setattr(ended_jobs, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    begin(zone, 101)
    assert LogEntry.objects.filter(zone=zone, kind="CellsReleased").count() == 1
    # The others have waited for a slot: all of them go before the next begins.
    begin(zone, 102)
    assert LogEntry.objects.filter(zone=zone, kind="CellsReleased").count() == 3
    monkeypatch.undo()
    begin(zone, 103)
    now = market.slot_at(zone, 103)
    assert settle_finished(now=now) == 3
    settle_rents(now=now)
    backs = [Bid.objects.get(pk=bid.pk).refund_micros for bid, _ in bids]
    assert backs[0] == min(backs) == 294_000
    # Of the cell of slot 101 only the operational cost.
    assert max(backs) <= 588_000 - 98_000
    check_books()
    check_log(zone)


def test_a_zone_without_turns_keeps_no_rent_of_cells_that_it_had_on_sale(zone, owner):
    bid, _ = cancel_rented(zone, owner)
    settle_finished(now=NOW)
    last = NOW + timedelta(seconds=resold.WAIT_SLOTS * zone.slot_s)
    assert settle_rents(now=last - timedelta(microseconds=1)) == 0
    assert settle_rents(now=last) == 1
    assert Bid.objects.get(pk=bid.pk).refund_micros == 588_000
    # What the log says later changes nothing.
    refresh_zone(zone=zone, now=last)
    assert settle_rents(now=last) == 0
    assert Bid.objects.get(pk=bid.pk).refund_micros == 588_000
    check_books()


def test_what_a_machine_was_started_for_binds_what_is_shown_and_what_goes_back(zone, owner):
    node = market.node(zone)
    market.price_rent(zone, node)
    bid, job = sold(owner, zone)
    # Its first slot there costs 200,000 at least: less goes back than waits.
    type(node).objects.filter(pk=node.pk).update(rented_at=bid.decided_at)
    first = Reservation.objects.filter(bid=bid).earliest("slot")
    Reservation.objects.filter(pk=first.pk).update(operational_cost_micros=200_000)
    shown = quote_cancelling(bid=bid, job=job, now=NOW)
    assert (shown.refund_micros, shown.waits_micros) == (294_000, 106_000)
    cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settle_finished(now=NOW)
    buy_all(owner, zone)
    begin(zone, 101, 102, 103)
    settle_rents(now=market.slot_at(zone, 103))
    assert Bid.objects.get(pk=bid.pk).refund_micros == 400_000
    check_books()


def test_what_cannot_be_paid_is_tried_again_while_the_others_are(zone, owner, monkeypatch):
    node = market.node(zone)
    market.price_rent(zone, node)
    bids = [sold(owner, zone) for _ in range(2)]
    for _, job in bids:
        cancel_sold_job(job=job, cancelled_by=None, now=NOW)
    settle_finished(now=NOW)
    begin(zone, 101, 102, 103)
    pay, bad = resold.pay_for_idle_cells, bids[0][0]

    def pay_some(*, hold_reference, **terms):
        if hold_reference == bad.hold_reference:
            raise RuntimeError("odd")
        pay(hold_reference=hold_reference, **terms)

    now = market.slot_at(zone, 103)
    with monkeypatch.context() as odd:
        odd.setattr(resold, "pay_for_idle_cells", pay_some)
        assert settle_rents(now=now) == 1
    bad.refresh_from_db()
    assert (bad.failure, bad.rent_due_micros is None) == ("RuntimeError: odd", False)
    assert settle_rents(now=now) == 0
    assert settle_rents(now=now + timedelta(hours=2)) == 1
    bad.refresh_from_db()
    assert (bad.failure, bad.rent_due_micros) == ("", None)
    check_books()


@pytest.mark.django_db(transaction=True)
def test_rent_goes_back_once_however_many_settle_it_and_while_slots_begin(zone, owner):
    bid, job = cancel_rented(zone, owner)
    settle_finished(now=NOW)
    buy_all(owner, zone)
    begin(zone, 101, 102, 103)
    now = market.slot_at(zone, 103)
    acts = [lambda: resold.settle_rent(job=job, now=now) for _ in range(4)]
    later = market.slot_at(zone, 104)
    done = at_once([*acts, lambda: refresh_zone(zone=zone, now=later)])
    assert sorted(done[:4]) == [False, False, False, True]
    assert Bid.objects.get(pk=bid.pk).refund_micros == 588_000
    check_books()
