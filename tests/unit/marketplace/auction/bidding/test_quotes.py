"""Quotes: the price before anybody bids, the same that a bid then pays."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.quotes import make_quote
from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid, LogEntry, MarketHead
from marketplace.auction.selectors import load_market
from marketplace.common.errors import UserError
from marketplace.fleet.models import NodeStatus
from marketplace.fleet.selectors import find_largest_room_gb
from marketplace.fleet.services import ListingTerms, create_join_token, join_node
from marketplace.payments.models import Hold
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.messages import JoinRequest

pytestmark = pytest.mark.django_db


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="100")


def quote(owner, zone, *, data=None, slots=20, epochs=1, now=NOW, **changed):
    terms = market.job_terms(epochs=epochs) | changed
    job = JobRequest(owner, zone, data or market.dataset(owner, zone), **terms)
    deadline_at = zone.epoch_at + timedelta(seconds=10 * (101 + slots))
    return make_quote(job, deadline_at=deadline_at, now=now)


def sell(owner, zone, **terms):
    bid = market.bid(owner, zone, **terms)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    return bid


def test_quote_is_what_a_bid_then_pays_and_reserves_nothing(zone, owner):
    node = market.node(zone)
    for _ in range(3):
        sell(owner, zone, price_micros=3_000_000, epochs=2, slots=4)
    before = LogEntry.objects.count()

    answer = quote(owner, zone, epochs=3, slots=6)

    assert answer.price_micros is not None
    assert LogEntry.objects.count() == before
    assert Hold.objects.count() == 3
    assert (answer.position, answer.head_hash) == (
        MarketHead.objects.get().position,
        MarketHead.objects.get().head_hash,
    )
    bid = sell(owner, zone, price_micros=answer.price_micros + 1, epochs=3, slots=6)
    assert bid.status == "admitted"
    assert bid.payment_micros == answer.price_micros
    assert bid.cells == [[cell.slot, cell.node] for cell in answer.cells]
    assert {node_id for _, node_id in bid.cells or ()} == {node.pk}
    assert bid.finish_planned_at == answer.finish_at


def test_curve_never_rises_with_a_later_deadline_and_its_prices_are_true(zone, owner):
    market.node(zone, ask_micros=4_000_000)
    market.node(zone, ask_micros=400_000, available_from_at=market.slot_at(zone, 105))
    refresh_zone(zone=zone, now=NOW)
    answer = quote(owner, zone, epochs=3)
    prices = [point.price_micros for point in answer.curve]
    assert prices == sorted(prices, reverse=True)
    assert len(set(prices)) == len(prices) > 1
    assert (prices[0], prices[-1]) == (3_000_000, 300_000)
    for point in answer.curve:
        slots = (point.deadline_at - zone.epoch_at) // timedelta(seconds=10) - 101
        assert quote(owner, zone, epochs=3, slots=slots).price_micros == point.price_micros


def test_quote_says_why_nothing_fits_and_what_would(zone, owner):
    market.node(zone)
    refresh_zone(zone=zone, now=NOW)
    answer = quote(owner, zone, epochs=5, slots=3)
    assert answer.price_micros is None
    assert answer.refusal == "window"
    assert answer.cells == ()
    assert "Give a later deadline" in answer.refusal_text
    assert "$0.50" in answer.refusal_text


def test_quote_does_not_advise_a_later_deadline_while_no_node_runs(zone, owner):
    node = market.node(zone)
    refresh_zone(zone=zone, now=NOW)
    node.status = NodeStatus.OFFLINE
    node.save()
    refresh_zone(zone=zone, now=NOW)
    answer = quote(owner, zone)
    assert answer.refusal == "capacity"
    assert answer.refusal_text == (
        "No node of this zone is running at the moment. Ask again in a minute."
    )


def open_zone_of_eight_billion(*, memory_gb, device="cuda"):
    """A zone of Llama-3.1-8B, and a node that joined with so much memory."""
    zone = market.zone(model_shape=market.LLAMA_8B, base_memory_gb=16.9, max_sequence_length=4096)
    _, secret = create_join_token(
        zone=zone, provider=market.provider(), created_by=None, terms=ListingTerms(400_000), now=NOW
    )
    rows = tuple(
        build.measurement(base_memory_gb=16.06, jobs=n, samples_per_s=400.0) for n in (1, 4)
    )
    facts = build.facts(device=device, gpu_type="gpu", memory_gb=memory_gb, speeds=rows)
    join_node(request=JoinRequest(token=secret, name="gpu-1", facts=facts), now=NOW)
    zone.nodes.update(status=NodeStatus.ONLINE)
    return zone


def test_a_default_job_of_ordinary_rows_on_eight_billion_is_quoted_on_an_a100_of_40_gb(owner):
    zone = open_zone_of_eight_billion(memory_gb=39.0)
    refresh_zone(zone=zone, now=NOW)
    data = market.dataset(owner, zone, rows=500, row_tokens=600)
    answer = quote(owner, zone, data=data, slots=59, adapter={}, training={})
    assert answer.price_micros is not None
    assert answer.measured.terms.training.batch_size == 16
    # The market counted 143 GB when it reckoned with the whole batch.
    assert answer.measured.work.memory_demand_gb == pytest.approx(0.768, abs=0.001)


def test_a_quote_for_too_much_memory_names_the_rank_that_fits(owner):
    # A node with 0.9 GB for jobs.
    zone = open_zone_of_eight_billion(memory_gb=24.1)
    refresh_zone(zone=zone, now=NOW)
    room_gb = find_largest_room_gb(zone)
    data = market.dataset(owner, zone)
    answer = quote(owner, zone, data=data, adapter={"rank": 256})
    assert answer.refusal == "memory"
    said = re.fullmatch(
        r"No node here has the 12.3 GB the job needs beside the base model; the largest has "
        rf"{room_gb:.3g} GB for jobs. A rank of at most (\d+) fits\.",
        answer.refusal_text,
    )
    assert said is not None, answer.refusal_text
    rank = int(said.group(1))
    assert quote(owner, zone, data=data, adapter={"rank": rank}).refusal is None
    assert quote(owner, zone, data=data, adapter={"rank": rank + 1}).refusal == "memory"


def test_a_quote_where_no_rank_fits_says_what_else_to_choose(zone, owner):
    market.node(zone, memory_gb=1.0001)
    refresh_zone(zone=zone, now=NOW)
    answer = quote(owner, zone)
    assert answer.refusal == "memory"
    assert "Choose fewer target_modules, or another base model." in answer.refusal_text


def test_quote_expires_with_the_slot(zone, owner):
    market.node(zone)
    answer = quote(owner, zone)
    assert answer.expires_at == NOW + timedelta(seconds=10)


def test_quote_of_a_market_that_never_sold_anything(zone, owner):
    answer = quote(owner, zone)
    assert answer.price_micros is None
    assert (answer.position, LogEntry.objects.count()) == (0, 0)


def test_quote_refuses_what_a_bid_would_refuse(zone, owner):
    with pytest.raises(UserError) as caught:
        quote(owner, zone, training={"epochs": 0})
    assert caught.value.code == "invalid_hyperparameter"


def test_readers_see_what_another_process_decided(zone, owner):
    """The replica is behind the lane's engine and catches up from the log."""
    market.node(zone)
    sell(owner, zone, epochs=2)
    first = quote(owner, zone, epochs=2, slots=2)
    assert first.price_micros == 200_000
    for _ in range(3):
        sell(owner, zone, epochs=2, slots=2)
    again = quote(owner, zone, epochs=2, slots=2)
    # A receipt and a decision each.
    assert again.position == first.position + 6
    assert (again.price_micros, again.refusal) == (None, "capacity")


def test_market_shows_prices_shares_and_decisions_but_no_bids(zone, owner):
    node = market.node(zone)
    bid = sell(owner, zone, epochs=2)
    seen = load_market(zone, now=NOW)
    assert (seen.position, seen.seq, seen.slot, seen.first_slot) == (4, 2, 100, 100)
    assert seen.head_hash == bid.decision_hash
    [row] = seen.rows
    assert (row.node_id, row.ask_micros) == (node.pk, 400_000)
    assert row.compute_sold[:4] == (0.0, 0.25, 0.25, 0.0)
    assert [found.pk for found in seen.decisions] == [bid.pk]


def test_engine_that_holds_what_was_not_committed_is_thrown_away(zone, owner, monkeypatch):
    market.node(zone)
    sell(owner, zone)
    bid = market.bid(owner, zone)

    def broken(**_):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("marketplace.auction.lane.decisions.open_jobs", broken)
    with pytest.raises(RuntimeError):
        decide_pending_bids(zone=zone, now=NOW)
    monkeypatch.undo()
    bid.refresh_from_db()
    assert bid.status == "pending"
    assert LogEntry.objects.filter(kind="BidArrived").count() == 1
    head = MarketHead.objects.get(zone=zone)
    assert books._lane_books[zone.pk].engine.head_hash == head.head_hash
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert bid.status == "admitted"
    last = [row.kind for row in LogEntry.objects.order_by("position")][-4:]
    assert last == ["BidsReceived", "ReceiptsVoided", "BidsReceived", "BidArrived"]


def test_quote_before_the_lane_ever_ran_is_the_one_a_bid_then_pays(zone, owner):
    market.node(zone)
    market.node(zone, ask_micros=4_000, status="offline")
    market.node(zone, ask_micros=4_000, available_until_at=NOW - timedelta(seconds=10))
    answer = quote(owner, zone, epochs=3)
    assert answer.price_micros == 300_000
    assert LogEntry.objects.count() == 0
    seen = load_market(zone, now=NOW)
    assert [row.ask_micros for row in seen.rows] == [400_000]
    bid = sell(owner, zone, epochs=3, price_micros=answer.price_micros + 1)
    assert (bid.status, bid.payment_micros) == ("admitted", 300_000)
    assert bid.cells == [[cell.slot, cell.node] for cell in answer.cells]


@pytest.mark.parametrize(("data_format", "encoder"), [("classification", False), ("chat", True)])
def test_data_the_zones_model_cannot_learn_is_refused_before_it_is_paid_for(
    zone, owner, data_format, encoder
):
    data = market.dataset(owner, zone)
    data.format = data_format
    data.save(update_fields=["format"])
    zone.model_shape |= {"encoder": encoder}
    zone.save(update_fields=["model_shape"])
    market.node(zone)
    with pytest.raises(UserError, match=r"Choose (a zone with one|another zone)") as refused:
        quote(owner, zone, data=data)
    assert (refused.value.code, refused.value.param) == ("unfit_dataset", "dataset_id")
    with pytest.raises(UserError) as refused:
        market.bid(owner, zone, data=data)
    assert refused.value.code == "unfit_dataset"
    assert not Bid.objects.exists()
    assert not Hold.objects.exists()
