"""What the owner of a decided bid needs to check its decision without trusting the market.

The published log commits to a bid, and to what its decision reveals of it, by salted hashes. Its
owner gets the salt and what was committed to, the signed receipt, and the entries from the receipt
on, exactly as they are published. Nothing else is needed: the commitments, the hashes and the
places in the chain are SHA-256 sums of this text (``scheduler.public_log.entries``), and
``frontend/web/src/proof`` computes them in the browser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book.log_segments import read_log
from marketplace.auction.models import Bid
from marketplace.common.errors import Conflict
from scheduler.auction.log.chain import entry_to_json
from scheduler.public_log.canonical_json import serialize_canonical
from scheduler.public_log.entries import PRIVATE_PARTS, hide_bid

FORMAT = "finetender-proof-3"
#: Later entries that come along, to show that the chain was built on the decision.
FOLLOWING = 20
#: Characters after which no more later entries are added; solved prices can be long.
TEXT_MAX = 1_000_000


def build_bid_proof(*, bid: Bid) -> str:
    """The opening of the bid's commitment, and the published entries around its decision.

    JSON text, each entry in the canonical form that its hash covers. Show it to the bid's owner
    only: the salt opens what the log keeps closed.

    Raises
    ------
    Conflict
        ``not_decided``: the bid has no entry in the log yet. ``answered_by_the_lane``: no bid
        was sealed, since the express lane sells at its posted price.
    """
    if bid.position is None:
        raise Conflict("not_decided", "The auction has not decided this bid, so there is no proof.")
    if bid.slo_s is not None:
        raise Conflict(
            "answered_by_the_lane",
            f"The express lane answered this request at position {bid.position} of the zone's log, "
            "with the question and the answer in full; there is no sealed bid to open.",
        )
    receipt = json.loads(bid.receipt) if bid.receipt else None
    # Nothing stands in a proof that does not prove: before the receipt that is no entry.
    first = bid.position - 1 if receipt is None else int(receipt["position"])
    rows = read_log(bid.zone_id, first=first, last=bid.position + FOLLOWING)
    opening: dict[str, Any] = {}
    texts: list[str] = []
    for entry in books.build_entries(rows):
        value = entry_to_json(entry)
        if entry.position == bid.position:
            opening = _opening(value)
        text = serialize_canonical(hide_bid(value))
        if entry.position > bid.position + 1 and sum(map(len, texts)) + len(text) > TEXT_MAX:
            break
        texts.append(text)
    head: dict[str, Any] = {
        "format": FORMAT,
        "zone": bid.zone.name,
        "bid_id": bid.pk,
        "position": bid.position,
        "receipt": receipt,
        "opening": opening,
    }
    return f'{serialize_canonical(head)[:-1]},"entries":[{",".join(texts)}]}}'


def _opening(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What the commitments of the bid's own entry were made of."""
    event, outcome = entry["event"], entry["outcome"]
    return {
        "bid": event["task"]["bid"],
        "salt": event["salt"],
        "private": {name: outcome[name] for name in PRIVATE_PARTS},
    }
