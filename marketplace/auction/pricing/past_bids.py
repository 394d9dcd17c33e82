"""A zone's past arrivals, as a forecast of the bids to come takes them.

Days are counted back from the present: today is the last 24 hours, so that no
midnight makes the market forget what it saw an hour ago. A past day is used when
the log knows the whole of it and of the time after it that the horizon spans.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from math import inf

from marketplace.auction.book.log_segments import find_first_row
from marketplace.auction.models import LogEntry
from marketplace.auction.queries import iterate_logged_bids, list_logged_refunds
from marketplace.fleet.models import Zone
from scheduler.auction.log.codec import value_from_json
from scheduler.auction.prices.beats import SeenBids
from scheduler.auction.prices.forecast_span import ForecastSpan, find_sampling
from scheduler.auction.prices.worths import price_task
from scheduler.types import Task


def load_past_bids(*, zone: Zone, span: ForecastSpan, position: int) -> SeenBids:
    """The bids of a span, as the log has them up to a position."""
    first = _find_first_position(zone, span.decided_from, last=position)
    decided = _list_decided(zone, first, position, find_sampling(first=first, last=position))
    refunded = list_logged_refunds(zone_id=zone.pk, first=first, last=position)
    return SeenBids(
        tasks=[task for task, _ in decided],
        won=frozenset(task.id for task, has_won in decided if has_won) - refunded,
        refunded=refunded,
        first_position=first,
    )


def _find_first_position(zone: Zone, slot: int, *, last: int) -> int:
    """The position of the first beat of a slot or a later one; 1 where it is the log's first beat.

    By the log's own slots and not by its clock, which may have gone back: a verifier must come to
    the same.
    """
    beats = LogEntry.objects.filter(zone=zone, kind="SlotAdvanced").order_by("-position")
    texts = beats.values_list("event", flat=True)

    def find_slot(position: int) -> float:
        text = texts.filter(position__lte=position).first()
        return -inf if text is None else json.loads(text)["slot"]

    # What is archived is older than any span.
    begin = find_first_row(zone.pk)
    found = begin + bisect_left(range(begin, last + 1), slot, key=find_slot)
    return found if begin > 1 or beats.filter(position__lt=found).exists() else 1


def _list_decided(zone: Zone, first: int, last: int, every: int) -> list[tuple[Task, bool]]:
    """The bids at every n-th position with their prices, and whether each won."""
    logged = iterate_logged_bids(zone_id=zone.pk, first=first, last=last, every=every)
    return [
        (price_task(value_from_json(Task, json.loads(event)["task"]), price), has_won)
        for event, has_won, price in logged
    ]
