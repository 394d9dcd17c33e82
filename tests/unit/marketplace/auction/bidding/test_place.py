"""Placing bids: what is refused leaves no trace, and what is repeated happens once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.api.market.bid_answers import build_responses
from marketplace.auction.bidding.place import PlacedBid
from marketplace.auction.models import Bid
from marketplace.common.errors import Conflict, NotFound, PaymentRequired, UserError
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Entry, Hold
from marketplace.payments.selectors import Wallet, get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


def assert_no_trace(owner):
    assert not Bid.objects.exists()
    assert not Hold.objects.exists()
    assert Entry.objects.count() == 1  # the grant of the wallet
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)


def test_placed_bid_is_pending_and_its_price_is_held(zone, owner):
    market.node(zone)
    bid = market.bid(owner, zone, price_micros=4_000_000, epochs=3)
    bid.refresh_from_db()
    assert bid.status == "pending"
    assert (bid.samples, bid.compute_demand) == (270, 270.0)
    assert bid.rates == {"cpu": 100.0}
    assert bid.terms.training.epochs == 3
    assert get_wallet(organisation=owner) == Wallet(
        available_micros=6_000_000, held_micros=4_000_000
    )


def test_placed_bid_is_answered_without_reading_its_data_again(
    zone, owner, django_assert_num_queries
):
    bid = market.bid(owner, zone, price_micros=1_000_000)
    with django_assert_num_queries(0):
        [answer] = build_responses([PlacedBid(bid)])
    assert (answer.status_code, answer.data["dataset_id"]) == (202, bid.dataset_id)


def test_bids_arrive_in_rising_order(zone, owner):
    bids = [market.bid(owner, zone, price_micros=1_000_000) for _ in range(3)]
    arrivals = [Bid.objects.get(pk=bid.pk).arrival for bid in bids]
    assert arrivals == sorted(set(arrivals))


@pytest.mark.parametrize("price_micros", [0, -1, 1_000_001 * 1_000_000])
def test_prices_out_of_range_are_refused(zone, owner, price_micros):
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, price_micros=price_micros)
    assert caught.value.code == "invalid_price"
    assert_no_trace(owner)


def test_more_than_the_wallet_has_is_refused(zone, owner):
    with pytest.raises(PaymentRequired) as caught:
        market.bid(owner, zone, price_micros=10_000_001)
    assert caught.value.code == "insufficient_funds"
    assert_no_trace(owner)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (timedelta(seconds=0), "in the past"),
        (timedelta(days=-1), "in the past"),
        (timedelta(seconds=19), "no whole slot"),
        (timedelta(seconds=601), "beyond what is on sale"),
        (timedelta(days=400), "beyond what is on sale"),
    ],
)
def test_deadlines_that_cannot_be_kept_are_refused(zone, owner, after, words):
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, deadline_at=NOW + after)
    assert caught.value.code == "invalid_deadline"
    assert words in caught.value.message
    assert_no_trace(owner)


def test_deadlines_at_both_ends_of_the_horizon_are_taken(zone, owner):
    first = market.bid(owner, zone, price_micros=1_000_000, deadline_at=NOW + timedelta(seconds=20))
    last = market.bid(owner, zone, price_micros=1_000_000, deadline_at=NOW + timedelta(seconds=600))
    assert (first.status, last.status) == ("pending", "pending")


def test_deadline_without_a_time_zone_is_refused(zone, owner):
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, deadline_at=(NOW + timedelta(seconds=60)).replace(tzinfo=None))
    assert caught.value.code == "invalid_deadline"
    assert_no_trace(owner)


@pytest.mark.parametrize(
    ("training", "param"),
    [
        ({"epochs": 0}, "training.epochs"),
        ({"epochs": 51}, "training.epochs"),
        ({"epochs": 1.5}, "training.epochs"),
        ({"epochs": True}, "training.epochs"),
        ({"epochs": "many"}, "training.epochs"),
        ({"batch_size": 0}, "training.batch_size"),
        ({"batch_size": 10**9}, "training.batch_size"),
        ({"learning_rate": 0}, "training.learning_rate"),
        ({"learning_rate": float("nan")}, "training.learning_rate"),
        ({"learning_rate": float("inf")}, "training.learning_rate"),
        ({"learning_rate": -1.0}, "training.learning_rate"),
        ({"sequence_length": 129}, "training.sequence_length"),
        ({"sequence_length": 0}, "training.sequence_length"),
        ({"validation_share": 0.9}, "training.validation_share"),
        ({"schedule": "steep"}, "training.schedule"),
        ({"seed": -1}, "training.seed"),
        ({"weight_decay": 2}, "training.weight_decay"),
        ({"warmup_share": 1}, "training.warmup_share"),
        ({"epoch": 3}, "training.epoch"),
    ],
)
def test_wrong_training_settings_are_named(zone, owner, training, param):
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, training=training)
    assert caught.value.code == "invalid_hyperparameter"
    assert caught.value.param == param
    assert_no_trace(owner)


@pytest.mark.parametrize(
    ("adapter", "param"),
    [
        ({"rank": 0}, "adapter.rank"),
        ({"rank": 257}, "adapter.rank"),
        ({"alpha": 0.0}, "adapter.alpha"),
        ({"dropout": 1.0}, "adapter.dropout"),
        ({"dropout": -0.1}, "adapter.dropout"),
        ({"kind": "soft_prompt", "rank": 8}, "adapter.rank"),
        ({"kind": "soft_prompt", "target_modules": ["q_proj"]}, "adapter.target_modules"),
        ({"kind": "soft_prompt", "virtual_tokens": 0}, "adapter.virtual_tokens"),
        ({"kind": "soft_prompt", "virtual_tokens": 513}, "adapter.virtual_tokens"),
        ({"kind": "soft_prompt", "virtual_tokens": True}, "adapter.virtual_tokens"),
        ({"kind": "soft_prompt", "init_text": "x" * 2001}, "adapter.init_text"),
        ({"virtual_tokens": 8}, "adapter.virtual_tokens"),
        ({"looks_up": True}, "adapter.looks_up"),
        ({"kind": "magic"}, "adapter.kind"),
        ({"target_modules": []}, "adapter.target_modules"),
        ({"target_modules": ["q_prok"]}, "adapter.target_modules"),
        ({"rank": 10**400}, "adapter.rank"),
        ({"ranks": 8}, "adapter.ranks"),
    ],
)
def test_wrong_adapter_settings_are_named(zone, owner, adapter, param):
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, adapter=adapter)
    assert caught.value.code == "invalid_hyperparameter"
    assert caught.value.param == param
    assert_no_trace(owner)


def test_a_soft_prompt_is_sold_with_the_settings_left_to_us(zone, owner):
    bid = market.bid(owner, zone, adapter={"kind": "soft_prompt", "rank": "auto"}, training={})
    bid.refresh_from_db()
    assert (bid.terms.adapter.kind, bid.terms.adapter.virtual_tokens) == ("soft_prompt", 20)
    assert bid.terms.training.learning_rate == 0.0495
    assert "adapter.virtual_tokens" in bid.resolved
    assert "adapter.rank" not in bid.resolved


def test_a_soft_prompt_needs_memory_for_its_tokens_before_every_row(zone, owner):
    short, long = (
        market.bid(
            owner,
            zone,
            adapter={"kind": "soft_prompt", "virtual_tokens": tokens},
            training={"sequence_length": 64},
        )
        for tokens in (1, 64)
    )
    assert long.memory_demand_gb > short.memory_demand_gb


def test_settings_left_to_us_are_resolved_and_recorded(zone, owner):
    bid = market.bid(owner, zone, adapter={"rank": "auto"}, training={"epochs": "auto", "seed": 7})
    bid.refresh_from_db()
    assert bid.terms.adapter.rank == 16
    assert bid.terms.adapter.alpha == 32.0
    assert bid.terms.training.epochs == 10
    assert bid.terms.training.batch_size == 4
    assert bid.terms.training.learning_rate == 1.13e-3
    assert bid.terms.training.sequence_length == 128
    assert bid.terms.training.seed == 7
    assert set(bid.resolved) == {
        "adapter.rank",
        "adapter.alpha",
        "adapter.dropout",
        "training.epochs",
        "training.batch_size",
        "training.learning_rate",
        "training.sequence_length",
    }


@pytest.mark.parametrize("name", ["", "   ", "x" * 65, "a\nb", "a\0b"])
def test_names_that_cannot_be_shown_are_refused(zone, owner, name):
    with pytest.raises(UserError) as caught:
        market.bid(owner, zone, name=name)
    assert caught.value.code == "invalid_name"
    assert_no_trace(owner)


def test_data_of_somebody_else_are_not_there(zone, owner):
    theirs = market.dataset(builders.organisation(), zone)
    with pytest.raises(NotFound) as caught:
        market.bid(owner, zone, data=theirs)
    assert caught.value.code == "unknown_dataset"
    assert_no_trace(owner)


def test_closed_zone_takes_no_bids(zone, owner):
    zone.is_open = False
    zone.save()
    with pytest.raises(Conflict) as caught:
        market.bid(owner, zone)
    assert caught.value.code == "zone_closed"
    assert_no_trace(owner)


def test_same_key_and_request_gives_the_same_bid(zone, owner):
    data = market.dataset(owner, zone)
    first = market.bid(owner, zone, data=data, key="k1")
    second = market.bid(owner, zone, data=data, key="k1")
    assert second.pk == first.pk
    assert Bid.objects.count() == 1
    assert get_wallet(organisation=owner) == Wallet(
        available_micros=5_000_000, held_micros=5_000_000
    )


def test_same_key_gives_the_same_bid_after_its_deadline_passed(zone, owner):
    data = market.dataset(owner, zone)
    deadline_at = NOW + timedelta(seconds=60)
    first = market.bid(owner, zone, data=data, key="k1", deadline_at=deadline_at)
    second = market.bid(
        owner, zone, data=data, key="k1", deadline_at=deadline_at, now=NOW + timedelta(hours=1)
    )
    assert second.pk == first.pk


@pytest.mark.parametrize("changed", [{"price_micros": 5_000_001}, {"name": "other"}, {"epochs": 2}])
def test_same_key_with_another_request_is_a_conflict(zone, owner, changed):
    data = market.dataset(owner, zone)
    first = market.bid(owner, zone, data=data, key="k1")
    with pytest.raises(Conflict) as caught:
        market.bid(owner, zone, data=data, key="k1", **changed)
    assert caught.value.code == "idempotency_key_reused"
    assert caught.value.extra == {"bid_id": first.pk}
    assert Bid.objects.count() == 1
    assert get_wallet(organisation=owner).held_micros == 5_000_000


def test_keys_of_two_organisations_do_not_meet(zone, owner):
    other = builders.organisation(usd="10")
    first = market.bid(owner, zone, key="k1")
    second = market.bid(other, zone, key="k1")
    assert first.pk != second.pk
    assert check_ledger().balanced
