"""Handing out work: what each node should run now, from the cells of the jobs.

Called every second or so, and whenever something changed. Each call compares what should run
in the present slot with what is leased, and writes down only the difference; so two calls at once,
or a call again after a crash, make the same plan.

- A job whose cell is now gets a lease. It may have been admitted a moment ago.
- A job whose next cell is on the same node goes on under the lease it has, prolonged.
- A job whose cell is on another node waits until its present node has given it up, by a result or
  by losing the lease, and then starts there from its checkpoint.
- A job without a cell now is left out of its node's plan, which tells the node to checkpoint it.
- A job that has no cells left, or will not end within its last one, is marked for the auction.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from marketplace.common.locks import advisory_lock
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.fleet.selectors import (
    node_is_silent,
    slot_at,
    slot_ends_at,
    slot_starts_at,
)
from marketplace.jobs import locks
from marketplace.jobs.journal import event_record
from marketplace.jobs.models import EventKind, Job, JobStatus, NodePlan, Slice, SliceStatus
from marketplace.jobs.plans import plan_record, plans_latest, plans_send
from marketplace.jobs.services.life import replan_want
from marketplace.jobs.transitions import status_set

_LEASE_BYTES = 32
#: Share of a slot, and most seconds, before its end in which a job that leaves is let go already.
HANDOVER_SHARE = 0.2
HANDOVER_MAX_S = 2.0
#: How long plans are kept for whoever asks what was sent.
PLANS_KEPT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What a call did."""

    #: Ids of jobs that got a lease.
    started: tuple[str, ...]
    #: Plans handed to nodes' queues.
    sent: tuple[NodePlan, ...]


def slots_dispatch(*, now: datetime) -> Dispatch:
    """Bring every node's plan up to date and send what changed."""
    started: list[str] = []
    for zone in Zone.objects.order_by("pk"):
        with advisory_lock("jobs.dispatch", zone.pk, wait=False) as held:
            # Whoever holds it is doing this very work.
            if held:
                started += _zone_dispatch(zone, now)
    return Dispatch(started=tuple(started), sent=plans_send(now=now))


def handover_at(zone: Zone, slot: int) -> datetime:
    """From when a job that leaves its node at the slot's end is told to."""
    lead = min(HANDOVER_MAX_S, HANDOVER_SHARE * zone.slot_s)
    return slot_ends_at(zone, slot) - timedelta(seconds=lead)


def lease_expiry(zone: Zone, slot: int) -> datetime:
    return slot_ends_at(zone, slot) + timedelta(seconds=zone.lease_grace_s)


def _zone_dispatch(zone: Zone, now: datetime) -> list[str]:
    slot = slot_at(zone, now)
    open_slices = {
        held.job_id: held
        for held in Slice.objects.filter(job__zone=zone, status=SliceStatus.OPEN).select_related(
            "job", "node"
        )
    }
    due = {
        job.pk: job
        for job in Job.objects.filter(zone=zone, status__in=Job.ACTIVE, cells__contains=[[slot]])
    }
    nodes = {node.pk: node for node in Node.objects.filter(zone=zone).select_related("zone")}
    changing = {
        job_id
        for job_id in due.keys() | open_slices.keys() | _stranded(zone, slot)
        if _changes(due.get(job_id), open_slices.get(job_id), zone, nodes, slot, now)
    }
    started = []
    with transaction.atomic():
        for job in locks.jobs_lock(changing).values():
            if _job_dispatch(job, zone, nodes, slot, now):
                started.append(job.pk)
        _plans_record(zone, nodes, slot, now)
    NodePlan.objects.filter(node__zone=zone, made_at__lt=now - PLANS_KEPT).delete()
    return started


def _stranded(zone: Zone, slot: int) -> set[str]:
    """Waiting jobs whose last cell is past, and that nobody has marked yet."""
    waiting = Job.objects.filter(
        zone=zone,
        status__in=Job.ACTIVE,
        needs_replan=False,
        finish_planned_at__lte=slot_starts_at(zone, slot),
    )
    return set(waiting.values_list("pk", flat=True))


def _changes(
    job: Job | None,
    held: Slice | None,
    zone: Zone,
    nodes: dict[str, Node],
    slot: int,
    now: datetime,
) -> bool:
    """Whether a job is to be locked and written; most seconds none is."""
    if held is None:
        return (
            job is None
            or _can_start(job, zone, nodes, slot, now)
            or _node_gone(job, nodes, slot, now)
        )
    node_id = held.job.node_in(slot)
    if node_id == held.node_id:
        return held.last_slot < slot or _overruns(held.job, slot, now)
    return held.job.status == JobStatus.RUNNING or _out_of_cells(held.job, slot)


def _job_dispatch(job: Job, zone: Zone, nodes: dict[str, Node], slot: int, now: datetime) -> bool:
    """Bring one locked job in line with its cells; true when it got a lease."""
    if not job.is_active:
        return False
    held = locks.open_slice_lock(job)
    node_id = job.node_in(slot)
    if held is None:
        if node_id is None or not _can_start(job, zone, nodes, slot, now):
            if _out_of_cells(job, slot):
                replan_want(job=job, reason="Its planned slots are over.", now=now)
            elif _node_gone(job, nodes, slot, now):
                replan_want(job=job, reason="The node of its slot is gone.", now=now)
            return False
        _slice_open(job, nodes[node_id], zone, slot, now)
        return True
    if node_id == held.node_id:
        held.last_slot = max(held.last_slot, slot)
        held.lease_expires_at = max(held.lease_expires_at, lease_expiry(zone, slot))
        held.save(update_fields=["last_slot", "lease_expires_at"])
        if _overruns(job, slot, now):
            replan_want(job=job, reason="It is slower than planned.", now=now)
        return False
    if job.status == JobStatus.RUNNING:
        status_set(job, JobStatus.MOVING)
        job.save(update_fields=["status"])
        where = "its next slot" if node_id is None else f"node {nodes[node_id].name}"
        event_record(
            job=job,
            kind=EventKind.MOVING,
            message=f"Leaving node {held.node.name} for {where}.",
            now=now,
            data={"from_node": held.node_id, "to_node": node_id, "slot": slot},
        )
    if _out_of_cells(job, slot):
        replan_want(job=job, reason="It did not end within its planned slots.", now=now)
    return False


def _can_start(job: Job, zone: Zone, nodes: dict[str, Node], slot: int, now: datetime) -> bool:
    if _node_of(job, nodes, slot, now) is None:
        return False
    # So near the end a start would be stopped at once, unless the node keeps the job.
    return now < handover_at(zone, slot) or job.node_in(slot + 1) == job.node_in(slot)


def _node_of(job: Job, nodes: dict[str, Node], slot: int, now: datetime) -> Node | None:
    """The node of the job's cell, if there is one and it is there to run it."""
    node = nodes.get(job.node_in(slot) or "")
    if node is None or node.status in (NodeStatus.LEFT, NodeStatus.OFFLINE):
        return None
    return None if node_is_silent(node, now) else node


def _node_gone(job: Job, nodes: dict[str, Node], slot: int, now: datetime) -> bool:
    return (
        not job.needs_replan
        and job.node_in(slot) is not None
        and _node_of(job, nodes, slot, now) is None
    )


def _out_of_cells(job: Job, slot: int) -> bool:
    last = job.last_slot
    return not job.needs_replan and (last is None or last < slot)


def _overruns(job: Job, slot: int, now: datetime) -> bool:
    """Whether a job in its last cell will, at its present speed, not end within it."""
    return (
        not job.needs_replan
        and job.last_slot == slot
        and job.eta_at is not None
        and job.eta_at > job.finish_planned_at
    )


def _slice_open(job: Job, node: Node, zone: Zone, slot: int, now: datetime) -> Slice:
    held = Slice.objects.create(
        job=job,
        node=node,
        lease_token=secrets.token_urlsafe(_LEASE_BYTES),
        first_slot=slot,
        last_slot=slot,
        lease_expires_at=lease_expiry(zone, slot),
        opened_at=now,
    )
    status_set(job, JobStatus.RUNNING)
    job.started_at = job.started_at or now
    # An estimate from another node would mark the job for a new plan at once.
    job.eta_at = None
    job.save(update_fields=["status", "started_at", "eta_at"])
    step = job.checkpoint_step
    event_record(
        job=job,
        kind=EventKind.STARTED,
        message=(
            f"Started on node {node.name}."
            if step == 0
            else f"Goes on from step {step} on node {node.name}."
        ),
        now=now,
        data={"node": node.pk, "tier": node.tier, "slot": slot, "step": step},
    )
    return held


def _plans_record(zone: Zone, nodes: dict[str, Node], slot: int, now: datetime) -> None:
    leased: dict[str, list[Slice]] = defaultdict(list)
    current = Slice.objects.filter(
        job__zone=zone, status=SliceStatus.OPEN, last_slot__gte=slot
    ).select_related("job__dataset", "job__validation_dataset", "node")
    for held in current:
        if held.job.node_in(slot) == held.node_id:
            leased[held.node_id].append(held)
    latest = plans_latest(zone)
    for node_id in sorted(nodes):
        node = nodes[node_id]
        if node.status in (NodeStatus.LEFT, NodeStatus.OFFLINE):
            continue
        plan_record(
            zone=zone,
            node=node,
            slot=slot,
            slices=leased[node_id],
            latest=latest.get(node_id),
            now=now,
        )
