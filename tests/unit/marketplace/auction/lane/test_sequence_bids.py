"""Receipts: signed, in the log before the decision, with nothing in between."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from marketplace.accounts.models import Organisation
from marketplace.api.market.bid_serializers import serialize_bids
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.book.engine_cache import LogBroken
from marketplace.auction.book.transcript import write_transcript
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane import decisions
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sequence_bids import receive_bids
from marketplace.auction.lane.sweep import decide_all_pending, refresh_zone
from marketplace.auction.models import Bid, BidStatus, LogEntry
from marketplace.fleet.models import Node, Zone
from scheduler.auction.audit.transcripts import verify_transcript
from scheduler.public_log.entries import digest, select_public_part
from scheduler.public_log.witness import read_witness
from tests import builders, market_builders
from tests.builders import NOW

pytestmark = pytest.mark.django_db
SLOT = timedelta(seconds=market_builders.SLOT_S)


@pytest.fixture
def zone() -> Zone:
    return market_builders.zone()


@pytest.fixture(autouse=True)
def node(zone: Zone) -> Node:
    return market_builders.node(zone)


@pytest.fixture
def owner() -> Organisation:
    return builders.organisation(usd="100")


def receive(zone: Zone) -> None:
    """What a lane does that dies before it decides."""
    with enter_lane(zone=zone, now=NOW) as lane:
        receive_bids(lane, limit=50)


def kinds(zone: Zone) -> list[str]:
    return list(
        LogEntry.objects.filter(zone=zone).order_by("position").values_list("kind", flat=True)
    )


def voided(zone: Zone) -> list[tuple[list[str], str]]:
    events = LogEntry.objects.filter(zone=zone, kind="ReceiptsVoided").order_by("position")
    values = map(json.loads, events.values_list("event", flat=True))
    return [(value["task_ids"], value["reason"]) for value in values]


def test_what_does_not_begin_where_the_log_ends_is_not_written(
    zone: Zone, owner: Organisation
) -> None:
    receive(zone)
    before = kinds(zone)
    market_builders.bid(owner, zone)

    def receive_beside_the_log() -> None:
        with enter_lane(zone=zone, now=NOW) as lane:
            receive_bids(lane, limit=50)
            lane.head.head_hash = "0" * 64

    with pytest.raises(LogBroken, match="does not follow"):
        receive_beside_the_log()
    assert kinds(zone) == before
    receive(zone)
    assert kinds(zone) == [*before, "BidsReceived"]


def test_a_bid_is_received_in_the_log_before_it_is_decided(zone: Zone, owner: Organisation) -> None:
    bids = [market_builders.bid(owner, zone, price_micros=1_000_000) for _ in range(2)]
    decide_pending_bids(zone=zone, now=NOW)
    assert kinds(zone)[-3:] == ["BidsReceived", "BidArrived", "BidArrived"]
    for bid in bids:
        bid.refresh_from_db()
        [receipt] = read_witness([bid.receipt])
        assert receipt.receipt is not None
        received = LogEntry.objects.get(zone=zone, position=receipt.head.position)
        decided = LogEntry.objects.get(zone=zone, position=bid.position)
        assert (receipt.head.zone, receipt.head.hash) == (zone.name, received.hash)
        assert receipt.head.position < decided.position
        public = select_public_part(json.loads(decided.event), json.loads(decided.outcome))
        assert receipt.receipt.bid_id == bid.pk
        assert receipt.receipt.sealed == digest(public["event"])
        assert [bid.pk, receipt.receipt.sealed] in json.loads(received.event)["bids"]


def test_a_receipt_is_given_while_the_bid_waits_and_is_a_witness_of_the_log(
    zone: Zone, owner: Organisation
) -> None:
    bid = market_builders.bid(owner, zone, price_micros=1_000_000)
    assert serialize_bids([bid])[0]["receipt"] is None
    receive(zone)
    bid.refresh_from_db()
    told = serialize_bids([bid])[0]
    assert (told["status"], told["decision"]) == ("pending", None)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert serialize_bids([bid])[0]["receipt"] == told["receipt"]
    witness = read_witness([json.dumps(told["receipt"])])
    lines = list(write_transcript(zone, with_bids=False))
    assert verify_transcript(lines, witness=witness).witnessed == 1
    assert not verify_transcript(lines[:-2], witness=witness).ok


def test_what_a_dead_lane_received_is_decided_before_anything_else_happens(
    zone: Zone, owner: Organisation, node: Node
) -> None:
    bid = market_builders.bid(owner, zone, price_micros=1_000_000)
    receive(zone)
    # The provider, or the house, asks for nearly all that the bid is worth.
    node.ask_micros = 3_900_000
    node.save()
    refresh_zone(zone=zone, now=NOW)
    bid.refresh_from_db()
    assert (bid.status, bid.payment_micros) == (BidStatus.ADMITTED, market_builders.CELL_MICROS)
    assert kinds(zone)[-3:] == ["BidsReceived", "BidArrived", "NodeChanged"]
    assert verify_zone(zone).problems == []


def test_a_second_lane_gives_no_second_receipt(zone: Zone, owner: Organisation) -> None:
    bid = market_builders.bid(owner, zone, price_micros=1_000_000)
    receive(zone)
    bid.refresh_from_db()
    first = bid.receipt
    # Another lane comes in before this one decides; this one then finds nothing to do.
    assert decide_pending_bids(zone=zone, now=NOW).decided == 0
    bid.refresh_from_db()
    assert (bid.receipt, bid.status) == (first, BidStatus.ADMITTED)
    assert kinds(zone).count("BidsReceived") == kinds(zone).count("BidArrived") == 1


def test_a_bid_that_its_owner_takes_back_loses_its_receipt_in_the_log(
    zone: Zone, owner: Organisation
) -> None:
    bids = [market_builders.bid(owner, zone, price_micros=1_000_000) for _ in range(2)]
    receive(zone)
    cancel_bid(bid=bids[0], now=NOW)
    refresh_zone(zone=zone, now=NOW)
    assert voided(zone) == [([bids[0].pk], "withdrawn")]
    statuses = [Bid.objects.get(pk=bid.pk).status for bid in bids]
    assert statuses == [BidStatus.CANCELLED, BidStatus.ADMITTED]
    assert verify_zone(zone).problems == []


def test_a_bid_whose_slot_has_passed_is_received_again(zone: Zone, owner: Organisation) -> None:
    bid = market_builders.bid(owner, zone, price_micros=1_000_000)
    receive(zone)
    bid.refresh_from_db()
    first = bid.receipt
    decide_pending_bids(zone=zone, now=NOW + SLOT)
    bid.refresh_from_db()
    assert voided(zone) == [([bid.pk], "late")]
    assert (bid.status, bid.receipt != first) == (BidStatus.ADMITTED, True)
    assert kinds(zone)[-4:] == ["ReceiptsVoided", "SlotAdvanced", "BidsReceived", "BidArrived"]
    assert bid.cells is not None
    assert bid.cells[0][0] == 102


def test_a_clock_that_goes_back_does_not_make_a_receipt_late(
    zone: Zone, owner: Organisation
) -> None:
    bid = market_builders.bid(owner, zone, price_micros=1_000_000)
    receive(zone)
    refresh_zone(zone=zone, now=NOW - 3 * SLOT)
    bid.refresh_from_db()
    assert bid.status == BidStatus.ADMITTED
    assert voided(zone) == []


def test_a_bid_that_cannot_be_decided_gives_the_others_their_turn(
    zone: Zone, owner: Organisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    bids = [market_builders.bid(owner, zone, price_micros=1_000_000) for _ in range(3)]
    build = decisions.build_arrival

    def broken(lane: Any, bid: Any) -> Any:
        if bid.pk == bids[1].pk:
            raise RuntimeError("broken")
        return build(lane, bid)

    monkeypatch.setattr(decisions, "build_arrival", broken)
    decide_all_pending(zone_id=zone.pk, clock=lambda: NOW, pause=lambda _: None)
    statuses = [Bid.objects.get(pk=bid.pk).status for bid in bids]
    assert statuses == [BidStatus.ADMITTED, BidStatus.PENDING, BidStatus.ADMITTED]
    assert all(reason == "failed" for _, reason in voided(zone))
    assert voided(zone)[-1] == ([bids[1].pk], "failed")
    assert verify_zone(zone).problems == []
