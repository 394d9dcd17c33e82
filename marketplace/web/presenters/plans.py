"""Ribbons of bids and jobs, from their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from marketplace.auction.models import Bid
from marketplace.fleet.models import Node, Tier, Zone
from marketplace.fleet.selectors import slot_starts_at
from marketplace.jobs.models import Checkpoint, Job, JobStatus
from marketplace.web.presenters.timeline import (
    NodeSpan,
    Ribbon,
    RibbonMark,
    RibbonNode,
    build_ribbon,
    merge_cells,
)

#: Nodes of machines the market rents carry the machine's id.
RENTED = re.compile(r"mach_[0-9a-z]{26}")


def find_ribbon_nodes(zone: Zone) -> dict[str, RibbonNode]:
    """Every node the zone ever had: old plans name nodes that have left."""
    return {
        node.pk: RibbonNode(label_node(node), node.tier, node.gpu_type_id)
        for node in Node.objects.filter(zone=zone)
    }


def label_node(node: Node) -> str:
    """A rented machine is named by its tier and the end of its id: the whole fits no block."""
    if RENTED.fullmatch(node.name):
        return f"{Tier(node.tier).label} {node.name[-4:]}"
    return node.name


def build_bid_ribbon(bid: Bid, *, now: datetime) -> Ribbon:
    return build_ribbon(
        stays=_merge_stays(bid.zone, bid.cells or []),
        machines=find_ribbon_nodes(bid.zone),
        begun_at=bid.created_at,
        deadline_at=bid.deadline_at,
        now=now,
    )


def build_job_ribbon(
    job: Job,
    *,
    now: datetime,
    begun_at: datetime | None = None,
    checkpoints: Iterable[Checkpoint] = (),
    machines: dict[str, RibbonNode] | None = None,
) -> Ribbon:
    points = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    marks = [RibbonMark(point.created_at, f"{point.step:,}") for point in points]
    if job.status == "succeeded" and job.finished_at is not None:
        marks.append(RibbonMark(job.finished_at, "adapter", final=True))
    elif job.is_active:
        marks.append(RibbonMark(job.finish_planned_at, "adapter", final=True))
    return build_ribbon(
        stays=_merge_stays(job.zone, job.cells, until=job.finished_at),
        machines=machines or find_ribbon_nodes(job.zone),
        begun_at=begun_at or job.created_at,
        deadline_at=job.deadline_at,
        now=now,
        ended_at=job.finished_at,
        was_stopped=job.status in (*Job.STOPPED, JobStatus.FAILED),
        marks=marks,
    )


def _merge_stays(
    zone: Zone, cells: Sequence[Sequence[object]], *, until: datetime | None = None
) -> list[NodeSpan]:
    return merge_cells(cells, slot_starts_at=lambda slot: slot_starts_at(zone, slot), until=until)
