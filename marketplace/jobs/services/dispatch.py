"""Handing out work: what each node should run now, from the cells of the jobs.

Called every second or so, and whenever something changed. Each call compares what should run
in the present slot with what is leased, and writes down only the difference; so two calls at once,
or a call again after a crash, make the same plan.

- A job with a cell in this slot gets a lease. It may have been admitted a moment ago.
- A job with its next cell on the same node keeps its lease, which is extended.
- A job with its cell on another node waits until its present node has returned a result or lost the
  lease. Then it starts there from its checkpoint.
- A job without a cell now is left out of its node's plan, which tells the node to checkpoint it.
  One that has done its last step ends there instead, while its lease lasts.
- A job that has no cells left, or will not end within its last one, is marked for the auction.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Greatest

from marketplace.common.locks import advisory_lock
from marketplace.common.traces import record_stage
from marketplace.fleet.models import NOT_RUNNING, Node, NodeStatus, Zone
from marketplace.fleet.selectors import is_node_silent, slot_at, slot_ends_at, slot_starts_at
from marketplace.jobs import locks
from marketplace.jobs.journal import record_event
from marketplace.jobs.models import EventKind, Job, JobStatus, NodePlan, Slice, SliceStatus
from marketplace.jobs.plans import record_plans
from marketplace.jobs.selectors import may_run
from marketplace.jobs.services.fault_attribution import blame_nodes, blame_overrun
from marketplace.jobs.services.life import mark_for_replan
from marketplace.jobs.transitions import set_status

log = logging.getLogger(__name__)

_LEASE_BYTES = 32
#: Share of a slot, and most seconds, before its end in which a job that leaves is let go already.
HANDOVER_SHARE = 0.2
HANDOVER_MAX_S = 2.0
#: All that a look at the leases of a zone needs, so that it stays quick.
_LOOKED_AT = (
    *("job", "node", "lease_token", "last_slot"),
    *("job__status", "job__cells", "job__needs_replan"),
    *("job__eta_at", "job__finish_planned_at", "job__step", "job__total_steps"),
)
#: How long plans are kept, so that one can see what was sent.
PLANS_KEPT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What a call did."""

    #: Ids of jobs that got a lease.
    started: tuple[str, ...]
    #: What nodes have to take now.
    plans: tuple[NodePlan, ...]


def dispatch_slots(*, now: datetime) -> Dispatch:
    """Bring every node's plan up to date and call the nodes whose plan changed.

    A zone that cannot be dispatched does not stop the others; its error is raised after them, so
    that the clock's task counts as failed.
    """
    started: list[str] = []
    plans: list[NodePlan] = []
    failure: Exception | None = None
    for zone in _list_zones_at_work():
        try:
            with advisory_lock("jobs.dispatch", zone.pk, wait=False) as held:
                # The holder is doing this very work.
                if held:
                    done = _dispatch_zone(zone, now)
                    started += done.started
                    plans += done.plans
        except Exception as error:
            log.exception("zone %s: its slots could not be dispatched", zone.name)
            failure = failure or error
    if failure is not None:
        raise failure
    return Dispatch(started=tuple(started), plans=tuple(plans))


def _list_zones_at_work() -> QuerySet[Zone]:
    """Zones with jobs, leases or plans that may come to an end: others have nothing to do."""
    jobs = Job.objects.filter(status__in=Job.ACTIVE).values("zone")
    leases = Slice.objects.filter(status=SliceStatus.OPEN).values("job__zone")
    plans = NodePlan.objects.values("node__zone")
    at_work = Q(pk__in=jobs) | Q(pk__in=leases) | Q(pk__in=plans)
    return Zone.objects.filter(at_work).order_by("pk")


def compute_handover_at(zone: Zone, slot: int) -> datetime:
    """When a job that leaves its node at the slot's end gets the order."""
    lead = min(HANDOVER_MAX_S, HANDOVER_SHARE * zone.slot_s)
    return slot_ends_at(zone, slot) - timedelta(seconds=lead)


def compute_lease_expiry(zone: Zone, slot: int) -> datetime:
    return slot_ends_at(zone, slot) + timedelta(seconds=zone.lease_grace_s)


@dataclass(frozen=True, slots=True)
class _ZoneView:
    """A zone at the moment of a dispatch."""

    zone: Zone
    slot: int
    now: datetime
    #: Those that were asked for; ``None``: the zone has no such node.
    nodes: dict[str, Node | None]
    #: Jobs and the nodes that failed them in this slot: trying again at once would fail again.
    failed: frozenset[tuple[str, str]]

    def find_node(self, node_id: str | None) -> Node | None:
        """A node of the zone, read when it is first asked for: most of thousands run nothing."""
        if node_id is None:
            return None
        if node_id not in self.nodes:
            self.nodes[node_id] = _list_nodes(self.zone).filter(pk=node_id).first()
        return self.nodes[node_id]

    def node_of(self, job: Job) -> Node | None:
        """The node of the job's cell, if there is one and it is there to run it."""
        node = self.find_node(job.node_in(self.slot))
        if node is None or node.status in NOT_RUNNING:
            return None
        return None if is_node_silent(node, self.now) else node

    def can_start(self, job: Job) -> bool:
        node = self.node_of(job)
        if node is None or (job.pk, node.pk) in self.failed:
            return False
        if not may_run(job, node):
            # The lane has not looked since; it finds the job other cells.
            return False
        # So near the end a start would be stopped at once, unless the node keeps the job.
        stays = job.node_in(self.slot + 1) == node.pk
        return stays or self.now < compute_handover_at(self.zone, self.slot)

    def node_gone(self, job: Job) -> bool:
        """Whether the job has a cell now and nothing there to run it, unnoticed yet."""
        due = job.node_in(self.slot) is not None
        return due and not job.needs_replan and self.node_of(job) is None

    def out_of_cells(self, job: Job) -> bool:
        last = job.last_slot
        return not job.needs_replan and (last is None or last < self.slot)

    def overruns(self, job: Job) -> bool:
        """Whether a job in its last cell will, at its present speed, not end within it."""
        return (
            not job.needs_replan
            and job.last_slot == self.slot
            and job.eta_at is not None
            and job.eta_at > job.finish_planned_at
        )


def _dispatch_zone(zone: Zone, now: datetime) -> Dispatch:
    slot = slot_at(zone, now)
    if NodePlan.objects.filter(node__zone=zone, slot__gt=slot).exists():
        # The clock was set back. Nodes take no plan of an earlier slot than they have.
        return Dispatch(started=(), plans=())
    leased = Slice.objects.filter(job__zone=zone, status=SliceStatus.OPEN)
    held_jobs = list(leased.select_related("job").only(*_LOOKED_AT))
    _extend_leases(zone, slot, held_jobs)
    waiting = list(
        Job.objects.filter(
            Job.MAY_START, zone=zone, status__in=Job.ACTIVE, cells__contains=[[slot]]
        ).exclude(Exists(leased.filter(job=OuterRef("pk"))))
    )
    failed = Slice.objects.filter(
        job__in=waiting, status=SliceStatus.FAILED, last_slot__gte=slot
    ).values_list("job_id", "node_id")
    present = _ZoneView(
        zone=zone,
        slot=slot,
        now=now,
        nodes=_load_named_nodes(zone, slot, [*waiting, *(held.job for held in held_jobs)]),
        failed=frozenset(failed),
    )
    # Most seconds nothing changes, and then nothing is locked.
    changing = _find_stranded_jobs(zone, slot)
    changing |= {job.pk for job in waiting if present.can_start(job) or present.node_gone(job)}
    changing |= {held.job_id for held in held_jobs if _leaves_or_overruns(present, held)}
    started = []
    with transaction.atomic():
        # One that somebody holds is looked at again in a second.
        for job in locks.lock_free_jobs(changing).values():
            if _dispatch_job(present, job):
                started.append(job.pk)
        # What changed above is read again; most seconds nothing did.
        held_now = leased.select_related("job").only(*_LOOKED_AT) if changing else held_jobs
        plans = _record_plans(present, held_now)
    NodePlan.objects.filter(node__zone=zone, made_at__lt=now - PLANS_KEPT).delete()
    return Dispatch(started=tuple(started), plans=tuple(plans))


def _list_nodes(zone: Zone) -> QuerySet[Node]:
    return Node.objects.filter(zone=zone).select_related("zone", "provider")


def _load_named_nodes(zone: Zone, slot: int, jobs: Iterable[Job]) -> dict[str, Node | None]:
    """The nodes of jobs' cells, and those that have a plan, which may come to an end."""
    named = Q(pk__in={job.node_in(slot) for job in jobs} - {None})
    planned = Q(pk__in=NodePlan.objects.filter(node__zone=zone).values("node"))
    return {node.pk: node for node in _list_nodes(zone).filter(named | planned)}


def _find_stranded_jobs(zone: Zone, slot: int) -> set[str]:
    """Waiting jobs that have no cell left and are not marked yet."""
    waiting = Job.objects.filter(
        Job.MAY_START,
        zone=zone,
        status__in=Job.ACTIVE,
        needs_replan=False,
        finish_planned_at__lte=slot_starts_at(zone, slot),
    )
    return set(waiting.values_list("pk", flat=True))


def _extend_leases(zone: Zone, slot: int, held_jobs: list[Slice]) -> None:
    """Extend the leases of jobs that stay on their nodes in this slot, in one statement.

    Of a job that somebody holds, it is left to the next dispatch: slices are locked after their
    jobs, and who plans the job again asks for its slice.
    """
    staying = {
        held.job_id: held.pk
        for held in held_jobs
        if held.last_slot < slot and held.job.node_in(slot) == held.node_id
    }
    if not staying:
        return
    with transaction.atomic():
        free = locks.lock_free_jobs(staying)
        of_free = [staying[job_id] for job_id in free]
        Slice.objects.filter(pk__in=of_free, status=SliceStatus.OPEN).update(
            last_slot=Greatest("last_slot", slot),
            lease_expires_at=Greatest("lease_expires_at", compute_lease_expiry(zone, slot)),
        )


def _leaves_or_overruns(present: _ZoneView, held: Slice) -> bool:
    if held.job.node_in(present.slot) == held.node_id:
        return present.overruns(held.job)
    if held.job.has_done_all_steps:
        return False
    return held.job.status == JobStatus.RUNNING or present.out_of_cells(held.job)


def _dispatch_job(present: _ZoneView, job: Job) -> bool:
    """Bring one locked job in line with its cells; true when it got a lease."""
    if not job.is_active:
        return False
    held = locks.lock_open_slice(job)
    if held is not None:
        _continue_slice(present, job, held)
        return False
    node = present.node_of(job)
    if node is not None and present.can_start(job):
        _open_slice(present, job, node)
        return True
    if present.out_of_cells(job):
        mark_for_replan(job=job, reason="Its planned slots are over.", now=present.now)
    elif present.node_gone(job):
        blame_nodes(job, filter(None, [job.node_in(present.slot)]))
        mark_for_replan(job=job, reason="The node of its slot is gone.", now=present.now)
    return False


def _continue_slice(present: _ZoneView, job: Job, held: Slice) -> None:
    """See off a job that leaves, and notice one that stays but will not end in time."""
    slot, now = present.slot, present.now
    node_id = job.node_in(slot)
    if node_id == held.node_id:
        if present.overruns(job):
            blame_overrun(job, held, slot=slot)
            mark_for_replan(job=job, reason="It is slower than planned.", now=now)
        return
    if job.has_done_all_steps:
        return
    if job.status == JobStatus.RUNNING:
        set_status(job, JobStatus.MOVING)
        job.save(update_fields=["status"])
        following = present.find_node(node_id)
        where = "its next slot" if following is None else f"node {following.name}"
        record_event(
            job=job,
            kind=EventKind.MOVING,
            message=f"Leaving node {held.node.name} for {where}.",
            now=now,
            data={"from_node": held.node_id, "to_node": node_id, "slot": slot},
        )
    if present.out_of_cells(job):
        blame_overrun(job, held, slot=slot)
        mark_for_replan(job=job, reason="It did not end within its planned slots.", now=now)


def _open_slice(present: _ZoneView, job: Job, node: Node) -> None:
    slot, now = present.slot, present.now
    Slice.objects.create(
        job=job,
        node=node,
        lease_token=secrets.token_urlsafe(_LEASE_BYTES),
        first_slot=slot,
        last_slot=slot,
        first_step=job.checkpoint_step,
        last_step=job.checkpoint_step,
        lease_expires_at=compute_lease_expiry(present.zone, slot),
        opened_at=now,
    )
    set_status(job, JobStatus.RUNNING)
    if job.started_at is None:
        job.started_at = now
        record_stage(
            "job.plan", bid_id=job.bid_id, since=job.created_at, job=job.pk, node=node.pk, slot=slot
        )
    # An estimate from another node would mark the job for a new plan at once.
    job.eta_at = None
    job.save(update_fields=["status", "started_at", "eta_at"])
    step = job.checkpoint_step
    record_event(
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


def _record_plans(present: _ZoneView, held_now: Iterable[Slice]) -> list[NodePlan]:
    leased: dict[str, list[str]] = defaultdict(list)
    for held in held_now:
        if held.job.node_in(present.slot) == held.node_id:
            leased[held.node_id].append(held.lease_token)
    informed = [
        node
        for _, node in sorted(present.nodes.items())
        if node is not None and node.status not in (*NOT_RUNNING, NodeStatus.OFFERED)
    ]
    return record_plans(
        zone=present.zone, nodes=informed, slot=present.slot, leased=leased, now=present.now
    )
