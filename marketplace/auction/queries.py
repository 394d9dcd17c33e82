"""The auction's own SQL that locks nothing; what locks rows is in ``locks``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from marketplace.auction.models import FIRST_REVISION, BidStatus
from marketplace.common.db.pipeline import Statement, fetch

#: Of a zone's bids those that wait for a decision, set aside or not. The status is part of the
#: text, so that a prepared plan uses the index of waiting bids.
WAITING = f"FROM auction_bid WHERE zone_id = %s AND status = '{BidStatus.PENDING}'"
#: Rows of the log fetched at once.
_FETCH_ROWS = 2000


def has_pending_bids(*, zone_id: str) -> bool:
    """Whether bids wait to be decided, set aside or not."""
    [[(found,)]] = fetch(Statement(_PENDING, (zone_id,)))
    return found


def has_bids_in_turn(*, zone_id: str) -> bool:
    """Whether bids wait to be decided that are not set aside."""
    [[(found,)]] = fetch(Statement(_IN_TURN, (zone_id,)))
    return found


#: Asked after every batch and before every run.
_PENDING = f"SELECT EXISTS (SELECT {WAITING})"
_IN_TURN = f"SELECT EXISTS (SELECT {WAITING} AND retry_at IS NULL)"


def list_bids_to_retry(*, zone_id: str, now: datetime, limit: int) -> list[str]:
    """Bids that were set aside and are due for another try, the longest due first."""
    [due] = fetch(Statement(_TO_RETRY, (zone_id, now, str(limit))))
    return [bid_id for (bid_id,) in due]


_TO_RETRY = f"SELECT id {WAITING} AND retry_at <= %s ORDER BY retry_at LIMIT %s::bigint"


def load_bid_columns(*, bid_ids: Sequence[str], columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The id and the named columns of bids; JSON as text."""
    text = f"SELECT id, {', '.join(columns)} FROM auction_bid WHERE id = ANY(%s)"  # noqa: S608
    [rows] = fetch(Statement(text, (list(bid_ids),)))
    return rows


def load_first_cells(*, bid_ids: Sequence[str]) -> list[tuple[str, int, str]]:
    """Bid, slot and node of the cells that bids were admitted with, in slot order."""
    [rows] = fetch(Statement(_FIRST_CELLS, (list(bid_ids),)))
    return rows


_FIRST_CELLS = f"""
SELECT bid_id, slot, node_id FROM auction_reservation
WHERE bid_id = ANY(%s) AND revision = {FIRST_REVISION}
ORDER BY bid_id, slot
"""  # noqa: S608


def build_held_cells(*, of: Statement, first_slot: int) -> Statement:
    """Bid, slot and node of the cells that bids hold from a slot on; ``of`` selects the bids'
    ids."""
    return Statement(_HELD_CELLS.format(bid_ids=of.text), (*of.values, first_slot))


_HELD_CELLS = """
SELECT bid_id, slot, node_id FROM auction_reservation
WHERE bid_id IN ({bid_ids}) AND slot >= %s AND released_at IS NULL
"""


def iterate_logged_bids(
    *, zone_id: str, first: int, last: int, every: int
) -> Iterator[tuple[str, bool]]:
    """The events of bids at every n-th position of a zone's log, as JSON text; which won."""
    with connection.cursor() as cursor:
        cursor.execute(_LOGGED_BIDS, [first, last, every, zone_id])
        while rows := cursor.fetchmany(_FETCH_ROWS):
            yield from rows


def list_logged_refunds(*, zone_id: str, first: int, last: int) -> set[str]:
    """The bids whose price went back between two positions of a zone's log."""
    with connection.cursor() as cursor:
        cursor.execute(_LOGGED_REFUNDS, [zone_id, first, last])
        return {str(json.loads(event)["task_id"]) for (event,) in cursor.fetchall()}


_LOGGED_REFUNDS = """
SELECT event FROM auction_logentry
WHERE zone_id = %s AND position BETWEEN %s AND %s AND kind = 'CellsReleased'
AND event LIKE '%%"refunded":true%%'
"""

_LOGGED_BIDS = """
SELECT entry.event, starts_with(entry.outcome, '{"admitted":true')
FROM generate_series(%s::bigint, %s::bigint, %s::bigint) AS wanted (position)
JOIN auction_logentry AS entry ON entry.zone_id = %s AND entry.position = wanted.position
WHERE entry.kind = 'BidArrived'
ORDER BY entry.position
"""
