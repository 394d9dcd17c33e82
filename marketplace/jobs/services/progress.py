"""Taking in what running jobs report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction

from marketplace.common.queue import enqueue
from marketplace.common.traces import record_stage
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import slot_at
from marketplace.fleet.services import record_node_speed
from marketplace.jobs.journal import publish_progress
from marketplace.jobs.lease_checks import LeaseLost, lock_current_slice
from marketplace.jobs.models import Job, MetricPoint, Slice, SliceStatus
from marketplace.jobs.services.dispatch import compute_handover_at, compute_lease_expiry
from marketplace.jobs.work import load_job_totals, load_work_plan
from workers.protocol.reports import ProgressEvent, ProgressReply, ProgressReport

#: Over how long a slice's speed is taken, by the market's clock.
SPEED_EVERY = timedelta(seconds=30)
#: After this long a slice's speed says nothing of its node's.
SPEED_HOLDS = timedelta(seconds=90)
#: What one event may bring of the log stream.
LOG_LINES_MAX = 50
LOG_LINE_CHARS = 500
#: Points of a chart for a job that runs through without a stop, and most points of any job.
POINTS_OF_A_PASS = 4_000
POINTS_MAX = 20_000
#: Numbers the columns can hold.
_COUNT_MAX = 2**31 - 1
_CLOCK_SLACK = timedelta(days=1)


def record_progress(*, node: Node, report: ProgressReport, now: datetime) -> ProgressReply:
    """Keep the new events of a report, renew the lease, and say how to go on.

    Events already had are passed over, so a report may be sent again. Of a lease that is lost
    nothing is kept.
    """
    with transaction.atomic():
        try:
            job, held = lock_current_slice(lease_token=report.lease_token, node=node, now=now)
        except LeaseLost:
            return ProgressReply(keep_running=False)
        steps_max = load_job_totals(job).steps
        events = _select_new_events(held, report, steps_max=steps_max)
        if events:
            shown = _select_points(job, held, events, steps_max=steps_max)
            points = _store_points(job, held, shown, now)
            _trace_first_step(job, held, events)
            for event in events:
                _update_job(job, event, now)
            publish_progress(job=job, points=points, log=_collect_log_lines(shown))
            job.save()
            _note_warm_start(job, events)
        if events:
            held.last_seq = events[-1].seq
            held.last_step = max(held.first_step, job.checkpoint_step, events[-1].step)
        held.acknowledged_at = held.acknowledged_at or now
        held.heartbeats_missed = 0
        slot = slot_at(job.zone, now)
        stays = job.node_in(slot) == node.pk
        if stays:
            held.last_slot = max(held.last_slot, slot)
            held.lease_expires_at = max(held.lease_expires_at, compute_lease_expiry(job.zone, slot))
        _observe_speed(job, held, events, now)
        held.save(
            update_fields=[
                "last_seq",
                "last_step",
                "acknowledged_at",
                "heartbeats_missed",
                "last_slot",
                "lease_expires_at",
                "speed_observed_at",
                "speed_step",
                "units_per_s",
            ]
        )
    if held.speed_observed_at == now and held.units_per_s is not None:
        _observe_node_speed(node, now)
    return ProgressReply(
        keep_running=True,
        lease_expires_at=held.lease_expires_at.timestamp(),
        checkpoint_and_stop=not stays or _leaves_now(job, node, slot, now),
        last_seq=held.last_seq,
    )


def _trace_first_step(job: Job, held: Slice, events: list[ProgressEvent]) -> None:
    if job.step == 0 and events[-1].step > 0:
        since = job.started_at or held.opened_at
        record_stage(
            "job.first_step", bid_id=job.bid_id, since=since, job=job.pk, node=held.node_id
        )


def _note_warm_start(job: Job, events: list[ProgressEvent]) -> None:
    """Have the slots given back that a warm start does not need once it is at its target."""
    start = job.start
    if start is None or not start.sold_steps or start.target_loss is None:
        return
    losses = [event.valid_loss for event in events if event.valid_loss is not None]
    if losses and losses[-1] <= start.target_loss:
        enqueue("auction.spare_cells_give_back")


def _leaves_now(job: Job, node: Node, slot: int, now: datetime) -> bool:
    """Whether the job's slot is about to end and the next one is not on this node."""
    if now < compute_handover_at(job.zone, slot) or job.node_in(slot + 1) == node.pk:
        return False
    # A job that will be through in the grace of its lease is left to end.
    ends_in_time = job.eta_at is not None and job.eta_at <= compute_lease_expiry(job.zone, slot)
    return not (job.last_slot == slot and ends_in_time)


def _select_new_events(
    held: Slice, report: ProgressReport, *, steps_max: int
) -> list[ProgressEvent]:
    fresh: dict[int, ProgressEvent] = {}
    for event in report.events:
        if event.seq > held.last_seq and _is_plausible(event, steps_max):
            fresh.setdefault(event.seq, event)
    return [fresh[seq] for seq in sorted(fresh)]


def _is_plausible(event: ProgressEvent, steps_max: int) -> bool:
    counts = (event.step, event.total_steps, event.samples_done)
    if not all(0 <= count <= _COUNT_MAX for count in counts):
        return False
    return event.step <= event.total_steps <= steps_max


def _select_points(
    job: Job, held: Slice, events: list[ProgressEvent], *, steps_max: int
) -> list[ProgressEvent]:
    """The events that a chart or the log needs: of a long job not every step.

    However often a node reports, a job has ``POINTS_MAX`` points at most: its page reads them all.
    """
    stride = max(1, steps_max // POINTS_OF_A_PASS)
    chosen: list[ProgressEvent] = []
    before = held.last_step
    for event in events:
        says_more = event.valid_loss is not None or event.log or event.step == event.total_steps
        if stride == 1 or says_more or event.step // stride != before // stride:
            chosen.append(event)
        before = event.step
    room = POINTS_MAX - MetricPoint.objects.filter(job=job).count()
    return chosen[: max(0, room)]


def _store_points(
    job: Job, held: Slice, events: list[ProgressEvent], now: datetime
) -> list[dict[str, Any]]:
    points = [
        MetricPoint(
            job=job,
            slice=held,
            seq=event.seq,
            at=_bound_event_time(event, now),
            step=event.step,
            epoch=event.epoch,
            train_loss=event.train_loss,
            valid_loss=event.valid_loss,
            learning_rate=event.learning_rate,
            grad_norm=event.grad_norm,
            tokens_per_s=event.tokens_per_s,
            samples_per_s=event.samples_per_s,
            memory_gb=event.memory_gb,
            log=_collect_log_lines([event]),
        )
        for event in events
    ]
    MetricPoint.objects.bulk_create(points)
    return [serialize_point(point) for point in points]


def serialize_point(point: MetricPoint) -> dict[str, Any]:
    """A point of the charts, as browsers and clients get it."""
    return {
        "at": point.at.isoformat(),
        "step": point.step,
        "epoch": point.epoch,
        "train_loss": point.train_loss,
        "valid_loss": point.valid_loss,
        "learning_rate": point.learning_rate,
        "grad_norm": point.grad_norm,
        "tokens_per_s": point.tokens_per_s,
        "samples_per_s": point.samples_per_s,
        "memory_gb": point.memory_gb,
    }


def _bound_event_time(event: ProgressEvent, now: datetime) -> datetime:
    """The node's time, or ours when its clock is far off."""
    try:
        at = datetime.fromtimestamp(event.at, UTC)
    except (OverflowError, OSError, ValueError):
        return now
    return at if abs(at - now) < _CLOCK_SLACK else now


def _collect_log_lines(events: list[ProgressEvent]) -> list[str]:
    lines = [line for event in events for line in event.log]
    return [line.replace("\x00", "\ufffd")[:LOG_LINE_CHARS] for line in lines[-LOG_LINES_MAX:]]


def _update_job(job: Job, event: ProgressEvent, now: datetime) -> None:
    job.step = event.step
    job.total_steps = event.total_steps
    job.epoch = event.epoch
    job.samples_done = event.samples_done
    for name in (
        "train_loss",
        "learning_rate",
        "grad_norm",
        "tokens_per_s",
        "samples_per_s",
        "memory_gb",
    ):
        value = getattr(event, name)
        if value is not None:
            setattr(job, name, value)
    if job.first_train_loss is None:
        job.first_train_loss = event.train_loss
    if event.valid_loss is not None:
        if event.step == 0:
            job.valid_loss_before = event.valid_loss
        else:
            job.valid_loss = event.valid_loss
    job.eta_at = None
    if event.eta_s is not None and 0 <= event.eta_s < _CLOCK_SLACK.total_seconds() * 365:
        job.eta_at = now + timedelta(seconds=event.eta_s)
    job.progressed_at = now


def _observe_speed(job: Job, held: Slice, events: list[ProgressEvent], now: datetime) -> None:
    """Take the slice's own speed: the work units of its steps over the time between two reports.

    The first report of a lease still holds loading and warming up.
    """
    if not events or held.last_seq == 0 or held.acknowledged_at in (None, now):
        return
    begun_at, step = held.speed_observed_at, held.speed_step
    if begun_at is None or step is None:
        held.speed_observed_at, held.speed_step = now, held.last_step
        return
    if now - begun_at < SPEED_EVERY or held.last_step <= step:
        return
    units = load_work_plan(job).count_between(step, held.last_step)
    held.units_per_s = units / (now - begun_at).total_seconds()
    held.speed_observed_at, held.speed_step = now, held.last_step


def _observe_node_speed(node: Node, now: datetime) -> None:
    """Let the node's speed follow what all of its jobs do together, once each has been seen."""
    speeds = list(
        Slice.objects.filter(
            node=node, status=SliceStatus.OPEN, acknowledged_at__isnull=False
        ).values_list("units_per_s", "speed_observed_at")
    )
    known = [
        speed
        for speed, observed_at in speeds
        if speed is not None and observed_at is not None and now - observed_at < SPEED_HOLDS
    ]
    if known and len(known) == len(speeds):
        record_node_speed(node=node, units_per_s=sum(known), jobs=len(known))
