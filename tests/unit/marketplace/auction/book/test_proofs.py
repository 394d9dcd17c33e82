"""What an owner is given to check a decision with, and what it does not tell of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marketplace.auction.book.proofs import FOLLOWING, build_bid_proof
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid, LogEntry
from marketplace.common.errors import Conflict
from marketplace.fleet.models import Zone
from scheduler.public_log.commitments import commit_private, compute_commitment
from scheduler.public_log.entries import PRIVATE_PARTS, digest, hash_entry
from scheduler.public_log.witness import read_witness
from tests import builders, market_builders
from tests.builders import NOW

EXAMPLES = Path(__file__).parents[5] / "frontend" / "web" / "tests"


@pytest.fixture
def zone(db: None) -> Zone:
    made = market_builders.zone()
    market_builders.node(made)
    return made


def place(bid: Bid) -> int:
    """Of the decision in the zone's log."""
    assert bid.position is not None
    return bid.position


def decided(zone: Zone, *limits: int) -> list[Bid]:
    owner = builders.organisation(usd="1000")
    bids = [market_builders.bid(owner, zone, price_micros=limit) for limit in limits]
    decide_pending_bids(zone=zone, now=NOW, limit=50)
    for bid in bids:
        bid.refresh_from_db()
    return bids


def assert_true(proof: dict[str, Any]) -> None:
    """The entries are whole, follow each other, and the opening opens the bid's own."""
    previous = None
    for entry in proof["entries"]:
        assert entry["hash"] == hash_entry(
            position=entry["position"],
            event=entry["event"],
            outcome=entry["outcome"],
            prev_hash=entry["prev_hash"],
        )
        assert previous is None or entry["prev_hash"] == previous
        previous = entry["hash"]
    own = next(entry for entry in proof["entries"] if entry["position"] == proof["position"])
    opening, published = proof["opening"], own["outcome"].get("private_commitment")
    sealed = compute_commitment(bid=opening["bid"], salt=opening["salt"])
    assert own["event"]["task"]["bid_commitment"] == sealed
    assert published == commit_private(opening["private"], salt=opening["salt"])
    assert_received(proof, own)


def assert_received(proof: dict[str, Any], own: dict[str, Any]) -> None:
    """The first entries hold the receipt, which is of the decided bid and signed."""
    [signed] = read_witness([json.dumps(proof["receipt"])])
    received = next(e for e in proof["entries"] if e["position"] == signed.head.position)
    assert received["hash"] == signed.head.hash
    assert signed.receipt is not None
    assert [proof["bid_id"], signed.receipt.sealed] in received["event"]["bids"]
    assert signed.receipt.sealed == digest(own["event"])


def test_a_proof_opens_the_own_bid_and_chains_it_to_its_neighbours(zone: Zone) -> None:
    first, second, third = decided(zone, 5_000_000, 4_000_001, 3_000_000)
    proof = json.loads(build_bid_proof(bid=second))
    assert_true(proof)
    assert proof["bid_id"] == second.pk
    assert proof["opening"]["bid"] == 4_000_001.0
    positions = [entry["position"] for entry in proof["entries"]]
    # The receipt stands before the first decision of the batch, and nothing before the receipt.
    assert positions == list(range(place(first) - 1, place(third) + 1))
    assert proof["receipt"]["position"] == positions[0]
    own = next(entry for entry in proof["entries"] if entry["position"] == second.position)
    assert own["hash"] == second.decision_hash
    assert own["outcome"]["payment"] == second.payment_micros
    assert place(first) == place(second) - 1


def test_a_proof_tells_nothing_of_what_others_bid(zone: Zone) -> None:
    bids = decided(zone, 5_000_000, 4_000_001, 3_000_000)
    text = build_bid_proof(bid=bids[1])
    for other in (bids[0], bids[2]):
        event = json.loads(LogEntry.objects.get(zone=zone, position=other.position).event)
        assert event["salt"] not in text
        assert repr(event["task"]["bid"]) not in text
    proof = json.loads(text)
    assert not any(name in entry["event"] for entry in proof["entries"] for name in ("salt", "bid"))
    hidden = ("surplus", "raised", "winning_deadline_slot", "winning_deadline_price")
    assert not any(name in entry["outcome"] for entry in proof["entries"] for name in hidden)


def test_numbers_stand_in_a_proof_as_the_hashes_cover_them(zone: Zone) -> None:
    (bid,) = decided(zone, 5_000_000)
    entry = LogEntry.objects.get(zone=zone, position=bid.position)
    outcome = json.loads(entry.outcome, parse_float=str, parse_int=str)
    proof = json.loads(build_bid_proof(bid=bid), parse_float=str, parse_int=str)
    own = next(entry for entry in proof["entries"] if entry["position"] == str(bid.position))
    told = {name: value for name, value in own["outcome"].items() if name in outcome}
    assert told == {name: of for name, of in outcome.items() if name not in PRIVATE_PARTS}
    assert own["outcome"].keys() - outcome.keys() == {"private_commitment"}
    opened = {name: of for name, of in outcome.items() if name in PRIVATE_PARTS}
    assert proof["opening"]["private"] == opened


def test_a_proof_ends_some_entries_after_the_decision(zone: Zone) -> None:
    bids = decided(zone, *[1_000_000 + number for number in range(FOLLOWING + 5)])
    proof = json.loads(build_bid_proof(bid=bids[0]))
    assert proof["entries"][-1]["position"] == place(bids[0]) + FOLLOWING
    assert_true(proof)


def test_a_bid_that_waits_has_no_proof_yet(zone: Zone) -> None:
    bid = market_builders.bid(builders.organisation(usd="10"), zone)
    with pytest.raises(Conflict) as refused:
        build_bid_proof(bid=bid)
    assert refused.value.code == "not_decided"


def test_the_browsers_example_is_a_true_record() -> None:
    assert_true(json.loads((EXAMPLES / "proof.json").read_text()))
