"""A zone's past arrivals, as a forecast of the bids to come takes them.

Days are counted back from the present: today is the last 24 hours, so that no
midnight makes the market forget what it saw an hour ago. A past day is used when
the log knows the whole of it and of the time after it that the horizon spans.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass, replace

from django.db.models import Count, Sum

from marketplace.auction.book.log_segments import find_last_segment
from marketplace.auction.models import Bid, BidStatus, LogEntry, LogSegment
from marketplace.auction.queries import iterate_logged_bids, list_logged_refunds
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import build_node_spec, list_nodes_on_sale, slot_at, slot_starts_at
from scheduler.auction.log.codec import value_from_json
from scheduler.auction.prices import EmptyZone, bursts, select_counted
from scheduler.auction.prices.bursts import LEAST_BURST, is_burst
from scheduler.auction.prices.forecast_span import ForecastSpan, find_sampling
from scheduler.types import Task


@dataclass(frozen=True, slots=True)
class PastBids:
    """Bids decided before, refused ones too."""

    today: tuple[Task, ...]
    #: By past day, slots counted from its start.
    past_days: tuple[tuple[Task, ...], ...]
    #: Ids of those that were admitted and not refunded.
    won: frozenset[str]
    #: Decided bids that each of these stands for.
    each: int
    #: First and last log position looked at.
    first_position: int
    last_position: int


def load_past_bids(*, zone: Zone, span: ForecastSpan, position: int) -> PastBids:
    """The bids of a span, as the log has them up to a position."""
    first = _find_position(zone, span.decided_from, last=position)
    each = find_sampling(first=first, last=position)
    today: list[Task] = []
    past: list[list[Task]] = [[] for _ in span.past_starts]
    decided = _list_decided(zone, first, position, each)
    for task, _ in decided:
        if task.arrival_slot >= span.day_start:
            today.append(task)
        for start, day in zip(span.past_starts, past, strict=True):
            if start <= task.arrival_slot < start + span.length:
                day.append(_moved_back(task, start))
    return PastBids(
        today=tuple(today),
        past_days=tuple(tuple(day) for day in past),
        won=frozenset(task.id for task, has_won in decided if has_won)
        - list_logged_refunds(zone_id=zone.pk, first=first, last=position),
        each=each,
        first_position=first,
        last_position=position,
    )


def find_log_start_slot(zone: Zone) -> int | None:
    """The slot in which the log's first entry was written; ``None`` before it."""
    first = LogEntry.objects.filter(zone=zone, position=1).values_list("recorded_at", flat=True)
    archived = LogSegment.objects.filter(zone=zone, first=1).values_list("began_at", flat=True)
    began_at = first.first() or archived.first()
    return None if began_at is None else slot_at(zone, began_at)


def has_burst(*, zone: Zone, slot: int, solved: int, last: int) -> bool:
    """Whether the slot under way brought a burst of bids that count since a solve.

    Refused bids count by what was bought since then, where every owner is a new one.

    Parameters
    ----------
    zone
    slot
        Under way.
    solved, last
        Log positions of the solve in force and of the head.
    """
    later = LogEntry.objects.filter(zone=zone, position__gt=solved, kind="BidArrived")
    in_slot = later.filter(recorded_at__gte=slot_starts_at(zone, slot))
    if in_slot.values("pk")[:LEAST_BURST].count() < LEAST_BURST:
        return False
    empty = EmptyZone(
        [build_node_spec(zone, node) for node in list_nodes_on_sale(zone)],
        base_memory=zone.base_memory_gb,
        money_quantum=1.0,
    )
    each = find_sampling(first=solved + 1, last=last)
    decided = _list_decided(zone, solved + 1, last, each)
    tasks = [task for task, _ in decided]
    won = frozenset(task.id for task, has_won in decided if has_won) - list_logged_refunds(
        zone_id=zone.pk, first=solved + 1, last=last
    )
    # A bid that is decided in a slot starts in the next.
    recent = [task for task in tasks if task.arrival_slot > slot]
    before = json.loads(LogEntry.objects.get(zone=zone, position=solved).event)["inputs"]
    bids, since = (len(bids) for bids in select_counted([recent, tasks], empty, won=won))
    return is_burst(
        bids=each * bids,
        today=before["bids_today"] * before["every"] + each * since,
        slots=slot + 2 - before["day_start"],
    )


def has_sold_much(*, zone: Zone, solved: int) -> bool:
    """Whether much was sold since the solve at a log position."""
    since = Bid.objects.filter(zone=zone, position__gt=solved, status=BidStatus.ADMITTED)
    found = since.aggregate(jobs=Count("pk"), sold=Sum("compute_demand", default=0.0))
    return bursts.has_sold_much(
        found["sold"],
        jobs=found["jobs"],
        capacities=[
            build_node_spec(zone, node).compute_capacity for node in list_nodes_on_sale(zone)
        ],
    )


def _find_position(zone: Zone, slot: int, *, last: int) -> int:
    """The first position that was written in a slot or later, by the clock that the log shows."""
    advances = LogEntry.objects.filter(zone=zone, kind="SlotAdvanced").order_by("-position")

    def find_slot(position: int) -> int:
        # A zone's first entry is one of these; what is archived is older than any span.
        event = advances.filter(position__lte=position).values_list("event", flat=True).first()
        return -1 if event is None else json.loads(event)["slot"]

    archived = find_last_segment(zone.pk)
    first = 1 if archived is None else archived.last + 1
    return first + bisect_left(range(first, last + 1), slot, key=find_slot)


def _list_decided(zone: Zone, first: int, last: int, every: int) -> list[tuple[Task, bool]]:
    """The bids at every n-th position, each with whether it won."""
    logged = iterate_logged_bids(zone_id=zone.pk, first=first, last=last, every=every)
    return [
        (value_from_json(Task, json.loads(event)["task"]), has_won) for event, has_won in logged
    ]


def _moved_back(task: Task, slots: int) -> Task:
    return replace(
        task, arrival_slot=task.arrival_slot - slots, deadline_slot=task.deadline_slot - slots
    )
