"""Rent of a job that stopped early, where its result is disputed or its payment contested."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.accounts.erasure import list_needs
from marketplace.accounts.models import Subject
from marketplace.auction.models import Bid
from marketplace.auction.resold import settle_rents
from marketplace.auction.result_disputes import decide_result_dispute, open_result_dispute
from marketplace.auction.settlement import settle_finished
from marketplace.jobs.models import Job
from marketplace.payments.invoices import issue_due_invoices
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import Earning, EarningKind, InvoiceLine
from marketplace.payments.selectors import get_house_balances, get_wallet
from marketplace.payments.self_dealing import list_returnable
from marketplace.web.presenters.receipt import build_receipt
from tests import builders
from tests import market_builders as market
from tests.unit.marketplace.auction.test_resold import begin, check_books
from tests.unit.marketplace.auction.test_settlement import earned, run, stopping
from tests.unit.marketplace.payments.test_self_dealing import card_payment
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db

#: A third of the price is of work that was done: its node's half of it, and the rent.
PRICE, PAY = 600_000, 100_000
#: Of the rest, half is rent, of which 98 % wait.
WAITS = 196_000


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def node(zone):
    return market.node(zone)


@pytest.fixture
def stopped(zone, owner, node):
    """A job whose price is rent by half, that stopped in its first cell of three; settled."""
    market.price_rent(zone, node)
    bid, job = stopping(zone, owner)
    assert bid.payment_micros == PRICE
    run(job, zone, 101)
    now = market.slot_at(zone, 101)
    market.end_slice(
        job, status=SliceEnd.FINISHED, step=12, now=now, stopped_early=True, best_step=8
    )
    assert settle_finished(now=now) == 1
    bid.refresh_from_db()
    assert (bid.refund_micros, bid.rent_due_micros, earned(node)) == (196_000, WAITS, PAY)
    return bid


def dispute(bid, now):
    job = Job.objects.get(bid_id=bid.pk)
    return open_result_dispute(
        job=job, reason="Noise.", opened_by=builders.owner_of(bid.organisation), now=now
    )


def decide(opened, now, *, is_for_owner):
    decide_result_dispute(
        dispute=opened,
        is_for_owner=is_for_owner,
        words="I looked at it.",
        decided_by=builders.user(is_operator=True),
        now=now,
    )


def check_end(bid, *, refund):
    """Nothing waits, and the books and the receipt are right."""
    bid = Bid.objects.get(pk=bid.pk)
    assert (bid.refund_micros, bid.rent_due_micros, bid.failure) == (refund, None, "")
    receipt = build_receipt(bid, job=Job.objects.get(bid_id=bid.pk))
    assert sum(micros for *_, micros in receipt.payees) == PRICE
    check_books()
    return receipt


@pytest.mark.parametrize("is_said", [True, False])
def test_no_more_than_the_charge_goes_back_where_a_dispute_gave_all_of_it_back(
    zone, owner, node, stopped, is_said
):
    now = market.slot_at(zone, 101)
    decide(dispute(stopped, now), now, is_for_owner=True)
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    if is_said:
        begin(zone, 102, 103)
    assert settle_rents(now=market.slot_at(zone, 103 if is_said else 109)) == 1
    # Its owner kept nothing up that it paid for, so nobody is paid for idle room out of it.
    assert earned(node) == 0
    check_end(stopped, refund=PRICE)


def test_rent_waits_while_the_result_is_disputed(zone, node, stopped):
    now = market.slot_at(zone, 101)
    opened = dispute(stopped, now)
    begin(zone, 102, 103)
    later = market.slot_at(zone, 103)
    assert settle_rents(now=later) == 0
    decide(opened, later, is_for_owner=False)
    assert settle_rents(now=later) == 1
    assert earned(node) == PAY + WAITS
    check_end(stopped, refund=196_000)


@pytest.mark.parametrize("is_for_owner", [True, False])
def test_pay_for_idle_room_goes_back_with_what_it_came_from(zone, node, stopped, is_for_owner):
    """Else an owner, and a friend with a node that cheats, would share the pay for idle room."""
    begin(zone, 102, 103)
    now = market.slot_at(zone, 103)
    assert settle_rents(now=now) == 1
    kept = get_house_balances()["congestion"]
    opened = dispute(stopped, now)
    # Neither matures meanwhile.
    later = now + timedelta(days=400)
    assert mature_earnings(now=later) == 0
    decide(opened, later, is_for_owner=is_for_owner)
    assert earned(node) == (0 if is_for_owner else PAY + WAITS)
    assert get_house_balances()["congestion"] == kept + WAITS * is_for_owner
    receipt = check_end(stopped, refund=PRICE if is_for_owner else 196_000)
    assert any(what == "its room stayed idle" for _, what, _ in receipt.payees) != is_for_owner
    assert mature_earnings(now=later) == (0 if is_for_owner else 2)


def test_pay_for_idle_room_from_a_contested_card_is_held_as_other_pay_is(
    zone, owner, node, stopped
):
    """Owner and provider are two organisations with one card."""
    for organisation in (owner, node.provider.organisation):
        card_payment(organisation)
    begin(zone, 102, 103)
    now = market.slot_at(zone, 103)
    settle_rents(now=now)
    [line] = Earning.objects.filter(kind=EarningKind.IDLE)
    assert line.contestable_until_at is not None
    assert line in list_returnable(owner.pk)


def test_a_provider_is_not_deleted_while_it_may_be_paid_for_idle_room(zone, node, stopped):
    words = "It may be paid for cells that were given back too late to be sold again."
    provider = node.provider.organisation
    assert words in list_needs(Subject.ORGANISATION, provider.pk)
    begin(zone, 102, 103)
    settle_rents(now=market.slot_at(zone, 103))
    assert words not in list_needs(Subject.ORGANISATION, provider.pk)


def test_no_invoice_says_that_something_is_kept_of_what_all_went_back_of(zone, owner, stopped):
    now = market.slot_at(zone, 101)
    decide(dispute(stopped, now), now, is_for_owner=True)
    issue_due_invoices(
        now=now + timedelta(days=40), name_references=lambda names: {name: name for name in names}
    )
    lines = InvoiceLine.objects.filter(invoice__organisation=owner)
    assert sum(line.amount_micros for line in lines) == 0
    assert lines.count() == 2
    assert not lines.filter(text__contains="kept").exists()
