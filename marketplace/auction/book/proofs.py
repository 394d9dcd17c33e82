"""What the owner of a decided bid needs to check its decision without trusting the house.

The published log commits to a bid by a salted hash. Its owner gets the salt, and with it the
entries around the decision exactly as everybody may read them. Nothing else is needed: the
commitment, the entry's hash and its place in the chain are SHA-256 sums of this text
(``scheduler.auction.log.chain``), and ``frontend/web/src/proof`` computes them in the browser.
"""

from __future__ import annotations

import json
from typing import Any

from marketplace.auction.book import engine_cache as books
from marketplace.auction.models import Bid, LogEntry
from marketplace.common.errors import Conflict
from scheduler.auction.log.chain import entry_to_json, hide_bid

FORMAT = "finetender-proof-1"
#: Later entries that come along, to show that the chain was built on the decision.
FOLLOWING = 20
#: Characters after which no more later entries are added; solved prices can be long.
TEXT_MAX = 1_000_000


def bid_proof(*, bid: Bid) -> str:
    """The opening of the bid's commitment, and the published entries around its decision.

    JSON text; numbers stand in it as the hashes cover them. Show it to the bid's owner only: the
    salt opens what the log keeps closed.

    Raises
    ------
    Conflict
        ``not_decided``: the bid has no entry in the log yet.
    """
    if bid.position is None:
        raise Conflict("not_decided", "The auction has not decided this bid, so there is no proof.")
    rows = LogEntry.objects.filter(
        zone_id=bid.zone_id, position__range=(bid.position - 1, bid.position + FOLLOWING)
    )
    opening: dict[str, Any] = {}
    texts: list[str] = []
    for entry in books.entries(rows):
        value = entry_to_json(entry)
        if entry.position == bid.position:
            opening = {"bid": value["event"]["task"]["bid"], "salt": value["event"]["salt"]}
        text = json.dumps(hide_bid(value))
        if entry.position > bid.position + 1 and sum(map(len, texts)) + len(text) > TEXT_MAX:
            break
        texts.append(text)
    head = {"format": FORMAT, "zone": bid.zone.name, "bid_id": bid.pk, "position": bid.position}
    return f'{json.dumps(head | {"opening": opening})[:-1]}, "entries": [{", ".join(texts)}]}}'
