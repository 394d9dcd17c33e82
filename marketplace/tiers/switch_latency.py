"""How long jobs really paused when they moved, from what their nodes reported."""

from __future__ import annotations

from datetime import datetime
from statistics import median

from marketplace.jobs.models import MetricPoint, Slice
from marketplace.tiers.machines import find_machine_node
from marketplace.tiers.models import Booking, Stay, ZoneTiers
from marketplace.tiers.reconcile_input import NOTED_WITHIN

#: Moves from whose pauses a move's length is estimated, and the fewest that suffice.
PAUSES_REMEMBERED, PAUSES_NEEDED = 20, 5


def find_resumed_at(arrived: Slice) -> datetime | None:
    """When the first step of a lease was reported."""
    points = MetricPoint.objects.filter(slice=arrived, train_loss__isnull=False)
    return points.order_by("seq").values_list("at", flat=True).first()


def pause_s(left: Slice, arrived: Slice) -> float | None:
    """Seconds from the last step of one lease to the first of the next; ``None`` until then."""
    first_at = find_resumed_at(arrived)
    if first_at is None:
        return None
    points = MetricPoint.objects.filter(slice=left).order_by("-seq")
    last_at = points.values_list("at", flat=True).first() or left.closed_at or arrived.opened_at
    return max(0.0, (first_at - last_at).total_seconds())


def measure_pauses(*, tiers: ZoneTiers) -> None:
    """Let the zone's two figures of a move add up to the median pause of its last moves.

    Their ratio stays as it is. The caller saves ``tiers``; with too few moves nothing changes.
    """
    stays = Stay.objects.filter(machine__zone=tiers.zone, pause_s__isnull=False)
    moved = Booking.objects.filter(machine__zone=tiers.zone, pause_s__isnull=False)
    newest = [
        *stays.order_by("-ended_at").values_list("ended_at", "pause_s")[:PAUSES_REMEMBERED],
        *moved.order_by("-closed_at").values_list("closed_at", "pause_s")[:PAUSES_REMEMBERED],
    ]
    newest.sort(reverse=True)
    found = [pause for _, pause in newest[:PAUSES_REMEMBERED] if pause is not None]
    planned_s = tiers.checkpoint_s + tiers.restore_s
    if len(found) < PAUSES_NEEDED or planned_s <= 0.0:
        return
    factor = median(found) / planned_s
    tiers.checkpoint_s *= factor
    tiers.restore_s *= factor


def record_stay_pauses(*, tiers: ZoneTiers, now: datetime) -> int:
    """Note the pauses of jobs that lately left serverless; how many were found."""
    noted = 0
    lately = Stay.objects.filter(
        machine__zone=tiers.zone, pause_s=None, ended_at__gt=now - NOTED_WITHIN
    )
    for stay in lately.select_related("machine__join_token").order_by("pk"):
        own = Slice.objects.filter(
            job=stay.job_id, node=find_machine_node(stay.machine), opened_at__gte=stay.started_at
        )
        left = own.order_by("-opened_at").first()
        if left is None or left.closed_at is None:
            continue
        after = Slice.objects.filter(job=stay.job_id, opened_at__gte=left.closed_at)
        arrived = after.exclude(pk=left.pk).order_by("opened_at").first()
        found = None if arrived is None else pause_s(left, arrived)
        if found is not None:
            stay.pause_s = found
            stay.save(update_fields=["pause_s"])
            noted += 1
    return noted
