"""Receipts of odd lives of jobs: what is shown adds up, and is what the books say."""

from __future__ import annotations

import pytest
from django.test import Client

from marketplace.accounts.models import Organisation
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.preparations import conclude_preparations
from marketplace.auction.settlement import settle_finished
from marketplace.common.money import from_micros
from marketplace.fleet.models import Node
from marketplace.fleet.slots import slot_starts_at
from marketplace.jobs.models import Job
from marketplace.jobs.services import cancel_job, dispatch_slots
from marketplace.payments.models import CardPayment, PaymentPurpose, PaymentStatus
from marketplace.payments.selectors import get_house_balances
from marketplace.vendors.models import VendorKind
from marketplace.web.presenters.receipt import PaymentReceipt, build_receipt, find_kept
from tests import builders, express_builders, vendor_builders
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_lists
from tests.vendor_builders import clock, prepare_next
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> Organisation:
    return builders.organisation(usd="10")


def read_receipt(bid: Bid) -> PaymentReceipt:
    """A receipt whose parts add up, and whose part for the house is what its accounts gained."""
    bid.refresh_from_db()
    job = Job.objects.get(bid_id=bid.pk)
    receipt = build_receipt(bid, job=job)
    assert sum(line.micros for line in receipt.lines) == bid.payment_micros
    assert sum(micros for _, _, micros in receipt.payees) == bid.payment_micros
    house = sum(micros for name, _, micros in receipt.payees if name == "The house")
    books = get_house_balances()
    assert house == sum(books[kind] for kind in ("revenue", "refunds", "sla_credits", "congestion"))
    client = Client()
    client.force_login(builders.owner_of(bid.organisation))
    shown = read_lists(client.get(f"/jobs/{job.pk}/receipt"))
    for *parts, price in shown[: 1 + bool(receipt.payees)]:
        assert sum(parts) == price == from_micros(bid.payment_micros or 0)
    return receipt


def test_a_prepared_job_shows_what_the_vendor_got_and_what_its_data_did_not_need(
    owner: Organisation,
) -> None:
    zone = vendor_builders.zone()
    node = market.node(zone)
    vendor = vendor_builders.vendor(zone)
    bid, job = vendor_builders.sell(owner, zone)
    assert job is not None
    assert prepare_next(clock=clock)
    conclude_preparations(now=clock())
    now = market.slot_at(zone, 103)
    Node.objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    job.refresh_from_db()
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settle_finished(now=now)
    assert [(name, micros) for name, _, micros in read_receipt(bid).payees] == [
        (node.provider.organisation.name, 200_000),
        (vendor.organisation.name, 20_000),
        ("You", 100_000),
    ]


def test_a_next_vendor_that_asks_more_than_was_sold_shows_what_the_house_added(
    owner: Organisation,
) -> None:
    zone = vendor_builders.zone()
    market.node(zone)
    vendor_builders.vendor(zone, "Cheap", kind=VendorKind.HUMAN)
    other = vendor_builders.vendor(zone, "Other", minimum_micros=900_000)
    wish = {"kinds": ["human", "automatic"]}
    bid, job = vendor_builders.sell(owner, zone, preparation=wish, epochs=1)
    assert job is not None
    now = slot_starts_at(zone, 103)
    conclude_preparations(now=now)
    assert prepare_next(clock=lambda: now)
    conclude_preparations(now=now)
    cancel_job(job=job, cancelled_by=None, now=now)
    settle_finished(now=now)
    assert [(name, micros) for name, _, micros in read_receipt(bid).payees] == [
        (other.organisation.name, 900_000),
        ("You", 98_000),
        ("The house", 2_000),
        ("The house", -880_000),
    ]


def test_an_express_job_says_what_it_pays_though_its_work_was_spared() -> None:
    zone = express_builders.zone_with_nodes()
    express_builders.open_lane(zone)
    now = express_builders.OPEN_AT
    asked = express_builders.answered(express_builders.ask(express_builders.customer(), zone))
    job = express_builders.job_of(asked)
    bid = Bid.objects.get(pk=job.bid_id)
    cancel_job(job=job, cancelled_by=None, now=now)
    before = get_house_balances()["congestion"]
    settle_finished(now=now)
    bid.refresh_from_db()
    receipt = build_receipt(bid, job=job)
    payment = bid.payment_micros or 0
    least = -(-payment // 4)
    assert [(line.label, line.micros) for line in receipt.lines] == [("Express price", payment)]
    assert "25 % of it is paid however much work is spared" in receipt.lines[0].why
    assert [(name, micros) for name, _, micros in receipt.payees] == [
        ("You", payment - least),
        ("The house", least),
    ]
    assert get_house_balances()["congestion"] - before == least
    assert find_kept(bid) is None
    assert "Your limit" not in receipt.limit


def test_a_job_of_a_bundle_has_no_limit_of_its_own_to_keep_anything_of(owner: Organisation) -> None:
    zone = market.zone()
    market.node(zone)
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    # Its part of the limit is by work, and less than its price where its slots are dearer.
    bid.is_joint, bid.price_micros = True, 60_000
    receipt = build_receipt(bid, job=Job.objects.get(bid_id=bid.pk))
    assert receipt.money == (("Charged", bid.decided_at, 100_000),)
    assert "limit of the whole bundle" in receipt.limit
    assert find_kept(bid) is None


def test_a_receipt_of_a_bid_paid_by_card_says_what_moved_on_the_card(owner: Organisation) -> None:
    zone = market.zone()
    market.node(zone)
    card = CardPayment.objects.create(
        organisation=owner,
        key="card-1",
        purpose=PaymentPurpose.BID,
        status=PaymentStatus.AUTHORISED,
        gateway_id="pi_1",
        amount_cents=124,
        created_at=NOW,
    )
    bid = market.bid(owner, zone, price_micros=1_234_567, card_payment_id=card.pk)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    card.status, card.received_cents, card.ended_at = PaymentStatus.PAID, 50, NOW
    card.save()
    receipt = build_receipt(bid, job=Job.objects.get(bid_id=bid.pk))
    assert [(what, micros) for what, _, micros in receipt.money] == [
        ("Authorised on the card", 1_240_000),
        ("Charged", 100_000),
        ("Taken from the card", 500_000),
        ("Put into the wallet: less than a card can pay", 400_000),
    ]
