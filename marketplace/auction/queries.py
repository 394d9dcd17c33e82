"""The auction's own SQL that locks nothing; what locks rows is in ``locks``."""

from __future__ import annotations

import json
from collections.abc import Iterator

from django.db import connection

#: Rows of the log fetched at once.
_FETCH_ROWS = 2000


def iterate_logged_bids(
    *, zone_id: str, first: int, last: int, every: int
) -> Iterator[tuple[str, bool, float | None]]:
    """The bids at every n-th position of a zone's log: event as JSON text, has it won, its price.

    The price is ``None`` where no plan was left.
    """
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
SELECT entry.event, starts_with(entry.outcome, '{"admitted":true'),
(entry.outcome::jsonb ->> 'winning_price')::float8
FROM generate_series(%s::bigint, %s::bigint, %s::bigint) AS wanted (position)
JOIN auction_logentry AS entry ON entry.zone_id = %s AND entry.position = wanted.position
WHERE entry.kind = 'BidArrived'
ORDER BY entry.position
"""
