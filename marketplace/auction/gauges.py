"""Prometheus figures of the market, read from the database when they are asked for.

============================================== ============= ======================================
name                                           labels        what
============================================== ============= ======================================
finetender_probe_ok                            part, probe,  1: it works, 0: it does not; the same
                                               zone          probes as the status page
finetender_task_success_timestamp_seconds      task          when the clock's task last succeeded
finetender_task_failing                        task          1: its last run failed
finetender_task_lag_seconds                    task          the last run waited for a worker
finetender_bids_pending                        zone          bids that wait for an answer
finetender_bid_oldest_pending_seconds          zone          how long the first of them has waited
finetender_bid_decision_seconds                zone          histogram of the last quarter hour
finetender_lane_commit_timestamp_seconds       zone          when the lane last wrote to the log
finetender_lane_position                       zone          entries of the log
finetender_nodes                               zone, status
finetender_leases                              zone, state   open; late: past their end; lost:
                                                             in the last hour, of those of a day
finetender_jobs_running                        zone
finetender_jobs_late                           state         past: their deadline; coming: they
                                                             will be
finetender_behind                              part          what is behind on a job's way, as
                                                             on /operator/health
finetender_prices_solved_timestamp_seconds     zone          of the prices in force
finetender_price_solve_failed                  zone          1: the last solve failed
finetender_log_verified_timestamp_seconds      zone          when the log was last verified
finetender_log_verified_position               zone          up to which entry
finetender_money_usd                           account       the ledger's accounts, by kind
finetender_work                                kind, state   durable work: waiting, running, late,
                                                             failed
============================================== ============= ======================================
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Count, Min, Q
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from marketplace.auction.lateness import explain_lateness
from marketplace.auction.models import (
    WAITS_SINCE,
    Bid,
    BidStatus,
    LogCheck,
    MarketHead,
    Pricing,
    SolveStatus,
)
from marketplace.auction.probes import run_probes
from marketplace.common import clock
from marketplace.common.durable.selectors import summarize_kinds
from marketplace.common.heartbeats import is_watched, read_heartbeats
from marketplace.common.ids import first_id
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import Job, JobStatus, Slice, SliceStatus
from marketplace.payments.account_sums import sum_by_month

#: Upper ends of the buckets of decisions, seconds; a request waits for two.
DECISION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
DECIDED_WITHIN = timedelta(minutes=15)
LOST_WITHIN = timedelta(hours=1)
#: Leases that were opened earlier are not looked at.
OPENED_WITHIN = timedelta(days=1)


class MarketCollector(Collector):
    """Every process of the market would answer the same, so none keeps counts of its own."""

    def describe(self) -> list[Metric]:
        # Registering must not ask the database.
        return []

    def collect(self) -> Iterator[Metric]:
        now = clock.now()
        zones = dict(Zone.objects.values_list("pk", "name"))
        yield from _of_probes(now)
        yield from _of_bids(zones, now)
        yield from _of_lanes(zones)
        yield from _of_nodes(zones)
        yield from _of_jobs(zones, now)
        yield from _of_lateness(now)
        yield from _of_work(now)
        yield from _of_prices(zones)
        yield from _of_checks(zones)
        yield from _of_money()


def _of_probes(now: datetime) -> Iterator[Metric]:
    working = GaugeMetricFamily(
        "finetender_probe_ok", "Whether a part works", labels=["part", "probe", "zone"]
    )
    for probe in run_probes(now=now):
        zone = probe.zone.name if probe.zone else ""
        working.add_metric([probe.part, probe.label, zone], probe.is_ok)
    succeeded = GaugeMetricFamily(
        "finetender_task_success_timestamp_seconds", "Last success of a task", labels=["task"]
    )
    failing = GaugeMetricFamily(
        "finetender_task_failing", "Whether the last run of a task failed", labels=["task"]
    )
    lag = GaugeMetricFamily(
        "finetender_task_lag_seconds", "How long the last run waited for a worker", labels=["task"]
    )
    for task, row in sorted(read_heartbeats().items()):
        if is_watched(task):
            if row.ok_at is not None:
                succeeded.add_metric([task], row.ok_at.timestamp())
            failing.add_metric([task], bool(row.error))
            if row.lag_s is not None:
                lag.add_metric([task], row.lag_s)
    yield from (working, succeeded, failing, lag)


def _of_bids(zones: dict[str, str], now: datetime) -> Iterator[Metric]:
    pending = GaugeMetricFamily("finetender_bids_pending", "Bids that wait", labels=["zone"])
    oldest = GaugeMetricFamily(
        "finetender_bid_oldest_pending_seconds", "How long the first has waited", labels=["zone"]
    )
    waiting = Bid.objects.filter(status=BidStatus.PENDING).values("zone_id")
    found = {
        row["zone_id"]: row for row in waiting.annotate(bids=Count("pk"), first_at=Min(WAITS_SINCE))
    }
    for zone_id, name in zones.items():
        row = found.get(zone_id)
        pending.add_metric([name], row["bids"] if row else 0)
        waited = (now - row["first_at"]).total_seconds() if row else 0.0
        oldest.add_metric([name], max(0.0, waited))
    decided = HistogramMetricFamily(
        "finetender_bid_decision_seconds", "From bid to answer", labels=["zone"]
    )
    # Whenever they were placed: a lane that stood still has answered after a long time.
    recent = Bid.objects.filter(decided_at__gt=now - DECIDED_WITHIN, slo_s=None)
    times: dict[str, list[float]] = {}
    recent = recent.exclude(status=BidStatus.CANCELLED)
    rows = recent.values_list("zone_id", WAITS_SINCE, "decided_at")
    for zone_id, created_at, decided_at in rows.iterator():
        seconds = (decided_at - created_at).total_seconds()
        times.setdefault(zone_id, []).append(max(0.0, seconds))
    for zone_id, name in zones.items():
        taken = times.get(zone_id, [])
        buckets = [(str(end), sum(each <= end for each in taken)) for end in DECISION_BUCKETS_S]
        decided.add_metric([name], [*buckets, ("+Inf", len(taken))], sum_value=sum(taken))
    yield from (pending, oldest, decided)


def _of_lanes(zones: dict[str, str]) -> Iterator[Metric]:
    committed = GaugeMetricFamily(
        "finetender_lane_commit_timestamp_seconds", "Last commit of the lane", labels=["zone"]
    )
    position = GaugeMetricFamily("finetender_lane_position", "Entries of the log", labels=["zone"])
    for head in MarketHead.objects.all():
        committed.add_metric([zones[head.zone_id]], head.updated_at.timestamp())
        position.add_metric([zones[head.zone_id]], head.position)
    yield from (committed, position)


def _of_nodes(zones: dict[str, str]) -> Iterator[Metric]:
    nodes = GaugeMetricFamily("finetender_nodes", "Nodes", labels=["zone", "status"])
    counted = Node.objects.values_list("zone_id", "status").annotate(nodes=Count("pk"))
    for zone_id, status, count in counted:
        nodes.add_metric([zones[zone_id], status], count)
    yield nodes


def _of_jobs(zones: dict[str, str], now: datetime) -> Iterator[Metric]:
    leases = GaugeMetricFamily("finetender_leases", "Slices of jobs", labels=["zone", "state"])
    running = GaugeMetricFamily("finetender_jobs_running", "Jobs that train", labels=["zone"])
    opened = Slice.objects.filter(status=SliceStatus.OPEN).values("node__zone_id")
    counted = {
        row["node__zone_id"]: row
        for row in opened.annotate(
            open=Count("pk"), late=Count("pk", filter=Q(lease_expires_at__lt=now))
        )
    }
    recent = Slice.objects.filter(pk__gte=first_id("slice", now - OPENED_WITHIN))
    recent = recent.filter(status=SliceStatus.LOST, closed_at__gt=now - LOST_WITHIN)
    lost = dict(recent.values_list("node__zone_id").annotate(slices=Count("pk")))
    training = Job.objects.filter(status=JobStatus.RUNNING).values_list("zone_id")
    jobs = dict(training.annotate(jobs=Count("pk")))
    for zone_id, name in zones.items():
        row = counted.get(zone_id, {"open": 0, "late": 0})
        leases.add_metric([name, "open"], row["open"])
        leases.add_metric([name, "late"], row["late"])
        leases.add_metric([name, "lost"], lost.get(zone_id, 0))
        running.add_metric([name], jobs.get(zone_id, 0))
    yield from (leases, running)


def _of_work(now: datetime) -> Iterator[Metric]:
    work = GaugeMetricFamily("finetender_work", "Work done later", labels=["kind", "state"])
    for kind in summarize_kinds(now=now):
        for state in ("waiting", "running", "late", "failed"):
            work.add_metric([kind.kind, state], getattr(kind, state))
    yield work


def _of_lateness(now: datetime) -> Iterator[Metric]:
    found = explain_lateness(now=now)
    late = GaugeMetricFamily("finetender_jobs_late", "Jobs that are late", labels=["state"])
    late.add_metric(["past"], found.late)
    late.add_metric(["coming"], found.will_be_late)
    behind = GaugeMetricFamily("finetender_behind", "Behind on a job's way", labels=["part"])
    for stage in found.stages:
        behind.add_metric([stage.label], stage.behind)
    yield from (late, behind)


def _of_prices(zones: dict[str, str]) -> Iterator[Metric]:
    solved = GaugeMetricFamily(
        "finetender_prices_solved_timestamp_seconds", "Of the prices in force", labels=["zone"]
    )
    failures = GaugeMetricFamily(
        "finetender_price_solve_failed", "Whether the last solve failed", labels=["zone"]
    )
    for pricing in Pricing.objects.only("zone_id", "applied_at", "status"):
        if pricing.applied_at is not None:
            solved.add_metric([zones[pricing.zone_id]], pricing.applied_at.timestamp())
        failures.add_metric([zones[pricing.zone_id]], pricing.status == SolveStatus.FAILED)
    yield from (solved, failures)


def _of_checks(zones: dict[str, str]) -> Iterator[Metric]:
    verified = GaugeMetricFamily(
        "finetender_log_verified_timestamp_seconds", "When the log was verified", labels=["zone"]
    )
    position = GaugeMetricFamily(
        "finetender_log_verified_position", "Up to which entry it was", labels=["zone"]
    )
    for check in LogCheck.objects.only("zone_id", "position", "checked_at"):
        verified.add_metric([zones[check.zone_id]], check.checked_at.timestamp())
        position.add_metric([zones[check.zone_id]], check.position)
    yield from (verified, position)


def _of_money() -> Iterator[Metric]:
    money = GaugeMetricFamily("finetender_money_usd", "The ledger's accounts", labels=["account"])
    sums: dict[str, int] = {}
    for (kind, _), micros in sum_by_month().items():
        sums[kind] = sums.get(kind, 0) + micros
    for kind, micros in sorted(sums.items()):
        money.add_metric([kind], micros / 1e6)
    yield money
