"""Which jobs the cells of a provider's nodes are sold to, now and later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from django.db.models import Count, Max, Min, QuerySet, Sum

from marketplace.auction.models import Reservation
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import slot_at, slot_ends_at, slot_starts_at
from marketplace.jobs.models import Job


@dataclass(frozen=True, slots=True)
class SoldRun:
    """Consecutive cells of one node that one bid holds."""

    node: Node
    #: ``None``: the express lane bought them for jobs to come.
    job_id: str | None
    starts_at: datetime
    ends_at: datetime
    slots: int
    #: What the provider is to earn for them, as they were sold.
    cost_micros: int


def list_next_work(*, nodes: QuerySet[Node], now: datetime, limit: int) -> list[SoldRun]:
    """What these nodes are sold to from the present slot on, one entry a bid and node, by begin.

    The slots of an entry may have gaps. A few queries and one for each zone, however many nodes
    and cells there are.
    """
    found: list[tuple[str, str, Zone, int, int, int, int]] = []
    for zone in Zone.objects.filter(pk__in=nodes.order_by().values("zone")).order_by("pk"):
        own = nodes.filter(zone=zone).order_by().values("pk")
        cells = Reservation.objects.filter(
            zone=zone, slot__gte=slot_at(zone, now), node__in=own, released_at=None
        )
        sold = cells.values_list("bid", "node").annotate(
            first=Min("slot"), last=Max("slot"), n=Count("pk"), cost=Sum("operational_cost_micros")
        )
        first = sold.order_by("first", "bid", "node")[:limit]
        found += [(bid_id, node_id, zone, *rest) for bid_id, node_id, *rest in first]
    found.sort(key=lambda row: slot_starts_at(row[2], row[3]))
    found = found[:limit]
    by_id = {node.pk: node for node in nodes.filter(pk__in={row[1] for row in found})}
    jobs = _find_job_ids(bid_id for bid_id, *_ in found)
    return [
        SoldRun(
            node=by_id[node_id],
            job_id=jobs.get(bid_id),
            starts_at=slot_starts_at(zone, first),
            ends_at=slot_ends_at(zone, last),
            slots=number,
            cost_micros=cost,
        )
        for bid_id, node_id, zone, first, last, number, cost in found
    ]


def list_sold_runs(*, node: Node, now: datetime) -> list[SoldRun]:
    """Each stretch of cells that a node is sold for, from the present slot on, by job and time."""
    zone = node.zone
    cells = Reservation.objects.filter(
        zone=zone, slot__gte=slot_at(zone, now), node=node, released_at=None
    )
    rows = list(cells.order_by("bid", "slot").values_list("bid", "slot", "operational_cost_micros"))
    jobs = _find_job_ids(bid_id for bid_id, _, _ in rows)
    runs: list[SoldRun] = []
    # Within a run, a cell's slot rises as its place does.
    for (bid_id, _), run in groupby(enumerate(rows), lambda at: (at[1][0], at[1][1] - at[0])):
        held = [row for _, row in run]
        runs.append(
            SoldRun(
                node=node,
                job_id=jobs.get(bid_id),
                starts_at=slot_starts_at(zone, held[0][1]),
                ends_at=slot_ends_at(zone, held[-1][1]),
                slots=len(held),
                cost_micros=sum(cost for _, _, cost in held),
            )
        )
    return sorted(runs, key=lambda run: (run.starts_at, run.ends_at))


def _find_job_ids(bid_ids: Iterable[str]) -> dict[str, str]:
    named = Job.objects.filter(bid_id__in=set(bid_ids))
    return dict(named.values_list("bid_id", "pk"))
