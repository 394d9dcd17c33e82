"""A bid is the same one whether a card pays for it or the wallet."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from datetime import timedelta

import pytest

from marketplace.auction.bidding.card_bids import (
    authorise_bid,
    place_authorised_bid,
    place_authorised_bids,
)
from marketplace.auction.bidding.place import NewBid, place_bid
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_job
from marketplace.common.errors import UserError
from marketplace.jobs.models import DatasetTokens, Job
from marketplace.jobs.services import cancel_job
from marketplace.payments.card_payments import cancel_payment
from marketplace.payments.models import CallKind, CardPayment, GatewayCall, PaymentStatus
from scheduler.types import Beat
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.world.lock_order import LockOrder, watch_locks

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked() -> NewBid:
    """A bid with a validation file of its own."""
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="100")
    return NewBid(
        organisation=owner,
        placed_by=builders.owner_of(owner),
        zone=zone,
        dataset=market.dataset(owner, zone),
        validation=market.dataset(owner, zone, rows=20),
        name="tone",
        **market.job_terms(),
        price_micros=5_000_000,
        deadline_at=NOW + timedelta(seconds=300),
        idempotency_key="once",
        verified_only=False,
    )


def authorise(asked: NewBid) -> CardPayment:
    """A payment as the gateway leaves it once a card has authorised it."""
    payment = authorise_bid(
        asked=asked, asked_by=builders.owner_of(asked.organisation), card_id=None, now=NOW
    )
    payment.status, payment.gateway_id = PaymentStatus.AUTHORISED, "pi_1"
    payment.save()
    return CardPayment.objects.select_related("organisation", "created_by").get(pk=payment.pk)


def test_a_bid_by_card_is_the_request_that_the_wallet_would_pay(asked):
    by_card = place_authorised_bid(payment=authorise(asked), now=NOW)
    assert by_card is not None
    other_key = replace(asked, idempotency_key="another")
    by_wallet = place_bid(asked=other_key, now=NOW)
    assert by_card.request_hash == by_wallet.request_hash == asked.request_hash
    assert by_card.validation_dataset_id == asked.validation.pk
    same = ("terms", "dataset_id", "compute_demand", "memory_demand_gb")
    for name in same:
        assert getattr(by_card, name) == getattr(by_wallet, name), name
    # The same form, sent again to be paid from the wallet.
    assert place_bid(asked=asked, now=NOW) == by_card


def test_every_field_of_what_is_asked_for_travels_and_counts(asked):
    written = asked.write_terms()
    assert json.loads(json.dumps(written)) == written
    beside = {"organisation", "placed_by", "card_payment_id", "quotes", "api_key_id"}
    beside.add("is_deadline_cut")
    assert set(written) == {each.name for each in fields(NewBid)} - beside
    changed = {
        "name": "other",
        "adapter": {"rank": 2},
        "training": {"epochs": 7},
        "price_micros": 1,
        "deadline_at": NOW,
        "validation": None,
        "preparation": {},
        "model": "ft:other",
        "verified_only": True,
        "metadata": {"run": "7"},
        "deadline_s": 60.0,
        "beat": Beat(7, 1),
    }
    for name, value in changed.items():
        assert replace(asked, **{name: value}).request_hash != asked.request_hash, name
    # Sent again, a bid that asks for its price may name a later beat.
    asks = replace(asked, beat=Beat(7, 1))
    assert replace(asks, beat=Beat(8)).request_hash == asks.request_hash
    optional = {each.name for each in fields(NewBid) if each.default is not MISSING}
    assert optional - beside <= {*changed, "idempotency_key"}
    assert replace(asked, idempotency_key="two").request_hash == asked.request_hash


def test_the_card_payment_is_locked_before_the_wallet_when_its_job_is_settled(asked):
    bid = place_authorised_bid(payment=authorise(asked), now=NOW)
    assert bid is not None
    decide_pending_bids(zone=asked.zone, now=NOW)
    job = Job.objects.get(bid_id=bid.pk)
    cancel_job(job=job, cancelled_by=None, now=NOW)
    assert settle_job(job=job, now=NOW) is None
    refresh_zone(zone=asked.zone, now=NOW)
    with watch_locks(LockOrder()):
        due = settle_job(job=job, now=NOW)
    assert due is not None
    assert due.refund_micros > 0


def test_rows_deleted_meanwhile_give_the_card_its_amount_back(asked):
    payment = authorise(asked)
    DatasetTokens.objects.filter(dataset=asked.validation).delete()
    asked.validation.delete()
    assert place_authorised_bid(payment=payment, now=NOW) is None
    payment.refresh_from_db()
    assert payment.failure == "The data set was deleted. Upload it again."
    assert not Bid.objects.exists()


def test_a_bid_that_could_not_be_placed_asks_no_card(asked):
    with pytest.raises(UserError):
        authorise(replace(asked, deadline_at=NOW - timedelta(seconds=1)))
    assert not CardPayment.objects.exists()


def test_the_bid_of_a_payment_that_is_given_up_is_not_placed(asked):
    payment = authorise(asked)
    cancel_payment(payment_id=payment.pk, now=NOW)
    # As it was read before the payment was given up.
    assert payment.failure == ""
    assert place_authorised_bid(payment=payment, now=NOW) is None
    assert place_authorised_bids(now=NOW) == 0
    assert not Bid.objects.exists()
    assert GatewayCall.objects.filter(kind=CallKind.CANCEL, subject=payment.pk).count() == 1
