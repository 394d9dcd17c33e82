"""Prometheus figures, read from the database when they are asked for.

=========================================== ====================== =============================
name                                        labels                 what
=========================================== ====================== =============================
finetender_tiers_pressure                   zone                   p of equation 2, may be +Inf
finetender_tiers_threshold_seconds          zone                   F of Algorithm 1
finetender_tiers_surplus_usd                zone                   left of the allowance
finetender_tiers_machines                   tier, status           rented machines
finetender_tiers_workers                    tier, state            live ones: booting, idle, busy
                                                                   or ending
finetender_tiers_boot_seconds               tier                   histogram, request to market
finetender_tiers_boots_failed_total         tier                   never came up: our cost
finetender_tiers_stays                                             jobs' stays on serverless
finetender_tiers_demotions_total            outcome                bookings closed: moved,
                                                                   needless or failed
finetender_tiers_demotion_seconds                                  histogram, last step here to
                                                                   first step there
finetender_tiers_saved_usd_total                                   by moves, as known at each
finetender_tiers_cost_usd_per_hour                                 rent of live machines
finetender_tiers_tier_cost_usd_per_hour     tier                   the same by tier
finetender_tiers_cost_usd_total             tier                   rent of ended machines
finetender_tiers_orphans                                           found running unasked
finetender_tiers_deadlines_missed                                  jobs done after their deadline
finetender_tiers_deadlines_overdue                                 jobs past it and not done
=========================================== ====================== =============================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from django.db.models import Avg, Count, Exists, F, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import Now
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from marketplace.fleet.models import Tier
from marketplace.jobs.models import Job, JobStatus, Slice, SliceStatus
from marketplace.tiers.models import (
    LIVE,
    Booking,
    BookingOutcome,
    Machine,
    MachineStatus,
    Stay,
    ZoneTiers,
)

#: Upper ends of the histograms' buckets, seconds.
BOOT_BUCKETS_S = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
PAUSE_BUCKETS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class TiersCollector(Collector):
    """Every process of the market would answer the same, so none keeps counts of its own."""

    def describe(self) -> list[Metric]:
        # Registering must not ask the database.
        return []

    def collect(self) -> Iterator[Metric]:
        yield from _of_zones()
        yield from _of_machines()
        yield from _of_boots()
        yield from _of_moves()
        yield from _of_money()
        yield from _of_deadlines()


def _of_zones() -> Iterator[Metric]:
    pressure = GaugeMetricFamily(
        "finetender_tiers_pressure", "Demand over capacity (p)", labels=["zone"]
    )
    threshold = GaugeMetricFamily(
        "finetender_tiers_threshold_seconds", "Serverless budget (F)", labels=["zone"]
    )
    surplus = GaugeMetricFamily(
        "finetender_tiers_surplus_usd", "What is left of the allowance", labels=["zone"]
    )
    for tiers in ZoneTiers.objects.select_related("zone").order_by("pk"):
        pressure.add_metric([tiers.zone.name], tiers.pressure)
        threshold.add_metric([tiers.zone.name], tiers.threshold_s)
        surplus.add_metric([tiers.zone.name], tiers.surplus / 3600.0)
    yield pressure
    yield threshold
    yield surplus


def _of_machines() -> Iterator[Metric]:
    machines = GaugeMetricFamily(
        "finetender_tiers_machines", "Rented machines", labels=["tier", "status"]
    )
    rows = Machine.objects.values_list("tier", "status").order_by("tier", "status")
    for tier, status, count in rows.annotate(count=Count("pk")):
        machines.add_metric([tier, status], count)
    yield machines
    workers = GaugeMetricFamily(
        "finetender_tiers_workers", "Live machines by what they do", labels=["tier", "state"]
    )
    at_work = Slice.objects.filter(node=OuterRef("join_token__node"), status=SliceStatus.OPEN)
    live = Machine.objects.filter(status__in=LIVE, is_orphan=False).annotate(busy=Exists(at_work))
    running = Q(status=MachineStatus.RUNNING)
    states = {
        "booting": Q(status__in=(MachineStatus.REQUESTED, MachineStatus.BOOTING)),
        "idle": running & Q(busy=False),
        "busy": running & Q(busy=True),
        "ending": Q(status=MachineStatus.ENDING),
    }
    counts = {
        (row["tier"], state): row[state]
        for row in live.values("tier").annotate(
            **{state: Count("pk", filter=which) for state, which in states.items()}
        )
        for state in states
    }
    for tier in Tier.values:
        for state in states:
            # Zero is reported too: a line that ends looks like one that stays.
            workers.add_metric([tier, state], counts.get((tier, state), 0))
    yield workers
    orphans = Machine.objects.filter(is_orphan=True).count()
    yield _one("finetender_tiers_orphans", "Machines found running unasked", orphans)


def _of_boots() -> Iterator[Metric]:
    boots = HistogramMetricFamily(
        "finetender_tiers_boot_seconds", "From request to a node in the market", labels=["tier"]
    )
    failed = CounterMetricFamily(
        "finetender_tiers_boots_failed", "Machines that never came up", labels=["tier"]
    )
    for tier in Tier.values:
        ready = Machine.objects.filter(tier=tier, ready_at__isnull=False).annotate(
            took=F("ready_at") - F("requested_at")
        )
        ends = [timedelta(seconds=end) for end in BOOT_BUCKETS_S]
        counts, total = _bucketed(ready, ends)
        boots.add_metric([tier], _buckets(BOOT_BUCKETS_S, counts), total.total_seconds())
        never = Machine.objects.filter(tier=tier, ready_at=None, failed_at__isnull=False)
        failed.add_metric([tier], never.count())
    yield boots
    yield failed


def _bucketed(rows: QuerySet[Machine], ends: Sequence[timedelta]) -> tuple[list[int], timedelta]:
    """Count rows up to each bound of ``took``, all rows last, and give the sum of all."""
    counted = {f"le_{i}": Count("pk", filter=Q(took__lte=end)) for i, end in enumerate(ends)}
    found = rows.aggregate(**counted, every=Count("pk"), mean=Avg("took"))
    total = (found["mean"] or timedelta()) * found["every"]
    return [*(found[name] for name in counted), found["every"]], total


def _of_moves() -> Iterator[Metric]:
    yield _one("finetender_tiers_stays", "Jobs' stays on serverless so far", Stay.objects.count())
    demotions = CounterMetricFamily(
        "finetender_tiers_demotions", "Bookings of workers for running jobs", labels=["outcome"]
    )
    closed = dict(
        Booking.objects.filter(closed_at__isnull=False)
        .values_list("outcome")
        .annotate(count=Count("pk"))
    )
    for outcome in (BookingOutcome.MOVED, BookingOutcome.NEEDLESS, BookingOutcome.FAILED):
        demotions.add_metric([outcome], closed.get(outcome, 0))
    yield demotions
    pauses = Stay.objects.filter(pause_s__isnull=False)
    moved_on = Booking.objects.filter(pause_s__isnull=False).exclude(origin__tier=Tier.SERVERLESS)
    counts, total = [0] * (len(PAUSE_BUCKETS_S) + 1), 0.0
    for rows in (pauses, moved_on):
        counted = {
            f"le_{i}": Count("pk", filter=Q(pause_s__lte=end))
            for i, end in enumerate(PAUSE_BUCKETS_S)
        }
        found = rows.aggregate(**counted, every=Count("pk"), total=Sum("pause_s"))
        counts = [
            have + found[name] for have, name in zip(counts, [*counted, "every"], strict=True)
        ]
        total += found["total"] or 0.0
    lasted = HistogramMetricFamily(
        "finetender_tiers_demotion_seconds", "From the last step here to the first one there"
    )
    lasted.add_metric([], _buckets(PAUSE_BUCKETS_S, counts), total)
    yield lasted


def _buckets(ends: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    names = [*(str(end) for end in ends), "+Inf"]
    return [(name, float(count)) for name, count in zip(names, counts, strict=True)]


def _of_money() -> Iterator[Metric]:
    live = dict(
        Machine.objects.filter(status__in=LIVE)
        .values_list("tier")
        .annotate(micros=Sum("price_micros_per_h"))
    )
    spent = dict(Machine.objects.values_list("tier").annotate(micros=Sum("cost_micros")))
    by_tier = GaugeMetricFamily(
        "finetender_tiers_tier_cost_usd_per_hour", "Rent of live machines", labels=["tier"]
    )
    so_far = CounterMetricFamily(
        "finetender_tiers_cost_usd", "Rent of ended machines", labels=["tier"]
    )
    for tier in Tier.values:
        by_tier.add_metric([tier], live.get(tier, 0) / 1e6)
        so_far.add_metric([tier], spent.get(tier, 0) / 1e6)
    yield _one(
        "finetender_tiers_cost_usd_per_hour", "Rent of live machines", sum(live.values()) / 1e6
    )
    yield by_tier
    yield so_far
    moved = Booking.objects.filter(outcome=BookingOutcome.MOVED, saved_micros__gt=0)
    saved = moved.aggregate(micros=Sum("saved_micros"))["micros"] or 0
    counter = CounterMetricFamily("finetender_tiers_saved_usd", "Saved by moves, as known at each")
    counter.add_metric([], saved / 1e6)
    yield counter


def _of_deadlines() -> Iterator[Metric]:
    late = Job.objects.filter(status=JobStatus.SUCCEEDED, finished_at__gt=F("deadline_at"))
    yield _one("finetender_tiers_deadlines_missed", "Jobs done after their deadline", late.count())
    overdue = Job.objects.filter(status__in=Job.ACTIVE, deadline_at__lt=Now())
    yield _one(
        "finetender_tiers_deadlines_overdue", "Jobs past their deadline, not done", overdue.count()
    )


def _one(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, value=value)
