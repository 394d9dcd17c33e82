"""A zone's past arrivals, as a forecast of the bids to come takes them.

Days are counted back from the present: today is the last 24 hours, so that no
midnight makes the market forget what it saw an hour ago. A past day is used when
the log knows the whole of it and of the time after it that the horizon spans.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from datetime import datetime

from marketplace.auction.models import LogEntry
from marketplace.auction.queries import iterate_logged_bids, list_logged_refunds
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_starts_at
from scheduler.auction.log.value_json import task_from_json
from scheduler.auction.prices.beats import SeenBids
from scheduler.auction.prices.forecast_span import ForecastSpan, find_sampling
from scheduler.types import Task


def load_past_bids(*, zone: Zone, span: ForecastSpan, position: int) -> SeenBids:
    """The bids of a span, as the log has them up to a position."""
    first = _position_at(zone, slot_starts_at(zone, span.first - 1), last=position)
    decided = _list_decided(zone, first, position, find_sampling(first=first, last=position))
    return SeenBids(
        tasks=[task for task, _ in decided],
        won=frozenset(task.id for task, has_won in decided if has_won)
        - list_logged_refunds(zone_id=zone.pk, first=first, last=position),
        first_position=first,
    )


def _position_at(zone: Zone, at: datetime, *, last: int) -> int:
    """The first position written at or after a moment, give or take a batch."""

    def written_at(position: int) -> datetime:
        rows = LogEntry.objects.filter(zone=zone, position=position)
        return rows.values_list("recorded_at", flat=True).get()

    return 1 + bisect_left(range(1, last + 1), at, key=written_at)


def _list_decided(zone: Zone, first: int, last: int, every: int) -> list[tuple[Task, bool]]:
    """The bids at every n-th position, each with whether it won."""
    logged = iterate_logged_bids(zone_id=zone.pk, first=first, last=last, every=every)
    return [(task_from_json(json.loads(event)["task"]), has_won) for event, has_won in logged]
