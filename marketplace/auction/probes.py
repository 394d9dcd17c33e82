"""Does the market work? One list of probes for the status page, health and the operator's page.

A probe reads what processes wrote down when they did their work: nothing here asks a process
whether it is well, and nothing is read from a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import Min

from marketplace.auction.models import WAITS_SINCE, Bid, BidStatus
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.selectors import summarize_kinds
from marketplace.common.heartbeats import is_late, is_watched, read_heartbeats
from marketplace.common.models import Heartbeat
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.payments.restores import HELD, is_gateway_held
from marketplace.payments.stripe_client import is_configured
from marketplace.vendors.handover import PREPARE

#: A bid is answered within two seconds; one that waits for longer waits for something broken.
LONGEST_WAIT = timedelta(seconds=15)
LANE_TASK = "auction.sweep"
#: On the queue of most others; like the lane's it is sent every few seconds at rest too.
WORKER_TASK = "fleet.offline_sweep"
BOOKS_TASK = "payments.books_check"
#: Durable work that is due for longer, and of a kind that no worker does, waits for none at all.
LONGEST_DUE = timedelta(minutes=5)


class HealthPart(StrEnum):
    """What may be away by itself."""

    LANE = "lane"
    WORKER = "worker"
    BEAT = "beat"
    NODES = "nodes"
    MONEY = "money"


@dataclass(frozen=True, slots=True)
class HealthProbe:
    """One thing that works or does not."""

    part: HealthPart
    label: str
    is_ok: bool
    #: Sentence that says what is so.
    text: str
    #: Since when it is broken, where that is known.
    since: datetime | None = None
    #: Its zone, where it is of one.
    zone: Zone | None = None


def run_probes(*, now: datetime) -> list[HealthProbe]:
    """Probe all parts of the market; a few queries, however large it is."""
    beats = read_heartbeats()
    zones = list(list_open_zones())
    return [
        _probe_beat(beats, now=now),
        _probe_lane(beats, now=now),
        *_probe_zones(zones, beats, now=now),
        _probe_worker(beats, now=now),
        *_probe_nodes(zones),
        _probe_books(beats),
        *_probe_gateway(),
        *_probe_failures(beats, now=now),
        *_probe_durable_work(now=now),
    ]


def _probe_beat(beats: Mapping[str, Heartbeat], *, now: datetime) -> HealthProbe:
    """The clock sends both of these every few seconds, at rest too."""
    is_silent = all(is_late(beats.get(task), task, now=now) for task in (LANE_TASK, WORKER_TASK))
    latest = max((row.ok_at for row in beats.values() if row.ok_at), default=None)
    text = "Nothing runs by the clock: start beat." if is_silent else "The clock runs."
    return HealthProbe(HealthPart.BEAT, "Clock", not is_silent, text, latest if is_silent else None)


def _probe_lane(beats: Mapping[str, Heartbeat], *, now: datetime) -> HealthProbe:
    row = beats.get(LANE_TASK)
    late = is_late(row, LANE_TASK, now=now)
    text = "The auction lane is silent: no bid is decided." if late else "Bids are decided."
    return HealthProbe(
        HealthPart.LANE, "Decisions", not late, text, row.ok_at if row and late else None
    )


def name_zone_task(zone_id: str) -> str:
    """Name what the lane writes down of one zone each time that it sweeps it."""
    return f"{LANE_TASK} {zone_id}"


def _probe_zones(
    zones: Sequence[Zone], beats: Mapping[str, Heartbeat], *, now: datetime
) -> list[HealthProbe]:
    """A zone may stand still while the lane works for others."""
    waiting = Bid.objects.filter(status=BidStatus.PENDING).annotate(since=WAITS_SINCE)
    late = waiting.filter(since__lt=now - LONGEST_WAIT)
    oldest = dict(
        late.values_list("zone").annotate(oldest=Min("since")).values_list("zone", "oldest")
    )
    lane_works = not is_late(beats.get(LANE_TASK), LANE_TASK, now=now)
    found: list[HealthProbe] = []
    for zone in zones:
        row, since = beats.get(name_zone_task(zone.pk)), oldest.get(zone.pk)
        text = "A bid has waited for too long." if since else ""
        if lane_works and is_late(row, LANE_TASK, now=now):
            error = row.error if row else ""
            text = f"The lane cannot enter the zone: {error or 'another one holds it'}."
            since = min(filter(None, (since, row and row.ok_at)), default=None)
        label = f"Answers of {zone.base_model_name}"
        probe = HealthProbe(HealthPart.LANE, label, not text, text or "No bid waits.", since, zone)
        found.append(probe)
    return found


def _probe_worker(beats: Mapping[str, Heartbeat], *, now: datetime) -> HealthProbe:
    row = beats.get(WORKER_TASK)
    late = is_late(row, WORKER_TASK, now=now)
    text = (
        "The workers are silent: jobs are not followed, and nothing is settled."
        if late
        else "Jobs are followed and settled."
    )
    return HealthProbe(
        HealthPart.WORKER, "Jobs", not late, text, row.ok_at if row and late else None
    )


def _probe_nodes(zones: Sequence[Zone]) -> list[HealthProbe]:
    sold = Node.objects.filter(status__in=(NodeStatus.ONLINE, NodeStatus.OFFERED))
    served = set(sold.values_list("zone_id", flat=True).distinct())
    return [
        HealthProbe(
            HealthPart.NODES,
            f"Nodes of {zone.base_model_name}",
            zone.pk in served,
            "There are machines for jobs." if zone.pk in served else "No node runs.",
            zone=zone,
        )
        for zone in zones
    ]


def _probe_books(beats: Mapping[str, Heartbeat]) -> HealthProbe:
    row = beats.get(BOOKS_TASK)
    error = row.error if row else ""
    text = error or ("The books balance." if row else "The books are not checked yet.")
    return HealthProbe(
        HealthPart.MONEY, "Books", not error, text, row.failed_at if row and error else None
    )


def _probe_gateway() -> list[HealthProbe]:
    """Money that waits for an operator after a restore; nothing where no gateway is."""
    if not is_configured() or not is_gateway_held():
        return []
    return [HealthProbe(HealthPart.MONEY, "Gateway", is_ok=False, text=HELD)]


def _probe_failures(beats: Mapping[str, Heartbeat], *, now: datetime) -> list[HealthProbe]:
    """Other tasks of the clock that fail, or whose turn has not come for too long."""
    probes: list[HealthProbe] = []
    for task, row in sorted(beats.items()):
        # A task of an earlier release is sent no more.
        if task in (LANE_TASK, WORKER_TASK, BOOKS_TASK) or not is_watched(task):
            continue
        if row.error:
            text, since = f"{task} fails: {row.error}", row.failed_at
        elif is_late(row, task, now=now):
            text, since = f"{task} is late.", row.ok_at
        else:
            continue
        part = HealthPart.MONEY if task.startswith("payments.") else HealthPart.WORKER
        probes.append(HealthProbe(part, task, is_ok=False, text=text, since=since))
    return probes


def _probe_durable_work(*, now: datetime) -> list[HealthProbe]:
    """Kinds of durable work that no worker does, and preparations that wait for an operator.

    A worker on another queue sweeps for all, so one that is gone shows in its work alone.
    """
    probes: list[HealthProbe] = []
    for found in summarize_kinds(now=now, late_after=LONGEST_DUE):
        if found.kind not in get_kinds():
            continue
        if found.late and not found.running:
            text = f"{found.kind} is due {found.late:,} times, and no worker does it."
        elif found.failed and found.kind == PREPARE:
            text = f"{found.kind} failed {found.failed:,} times and waits to be tried again."
        else:
            continue
        probes.append(HealthProbe(HealthPart.WORKER, found.kind, is_ok=False, text=text))
    return probes
