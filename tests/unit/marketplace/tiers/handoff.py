"""A job on serverless in a zone whose house rents workers, and what happens to it, step by step."""

from __future__ import annotations

from marketplace.fleet.models import Node
from marketplace.jobs.models import Job, MetricPoint, Slice
from marketplace.jobs.services import dispatch_slots
from marketplace.tiers.machines import reconcile_machines
from marketplace.tiers.models import Booking, Machine
from marketplace.tiers.services import run_tier_tick
from tests import market_builders
from tests.job_builders import at, lease
from tests.unit.marketplace.tiers.backends import MemoryBackend
from workers.protocol.reports import SliceEnd as Ended

#: Of the provider's node: $1.08 an hour, dearer than the house's worker at $0.74.
RESERVED_ASK = 3000
#: When the provider's node comes on sale.
RESERVED_FROM_S = 300


def tick(seconds: float) -> None:
    Node.objects.update(last_heartbeat_at=at(seconds))
    run_tier_tick(now=at(seconds))
    reconcile_machines(now=at(seconds))
    run_tier_tick(now=at(seconds))
    dispatch_slots(now=at(seconds))


def runs(job: Job, *, since_s: float, left_s: float, now_s: float, step: int = 10) -> None:
    """What the node reports: it works since then, and will take so long."""
    held = lease(job)
    Slice.objects.filter(pk=held.pk).update(
        acknowledged_at=at(since_s), lease_expires_at=at(now_s + 60)
    )
    Job.objects.filter(pk=job.pk).update(
        eta_at=at(now_s + left_s), step=step, total_steps=100, checkpoint_step=step
    )


def point(held: Slice, *, seq: int, step: int, seconds: float) -> None:
    MetricPoint.objects.create(
        job=held.job, slice=held, seq=seq, at=at(seconds), step=step, epoch=0.0, train_loss=1.0
    )


def booked_machine() -> Machine:
    return Booking.objects.get(closed_at__isnull=True).machine


def worker_booked(job: Job) -> Machine:
    """At 10 s the speed is known and 400 s are left: a worker is booked."""
    runs(job, since_s=2, left_s=400, now_s=10)
    tick(10)
    return booked_machine()


def worker_ready(job: Job, backend: MemoryBackend) -> Node:
    """At 31 s the booked worker is in the market; 379 s are left, at step 30."""
    made = backend.join(worker_booked(job).pk, now=at(31))
    runs(job, since_s=2, left_s=379, now_s=31, step=30)
    return made


def job_left(job: Job, backend: MemoryBackend) -> Node:
    """At 41 s the job has paused at step 30, with cells on the worker to go on in."""
    made = worker_ready(job, backend)
    tick(31)
    tick(40)
    market_builders.end_slice(job, status=Ended.PAUSED, now=at(41), step=30)
    return made
