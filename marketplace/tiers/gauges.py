"""Prometheus figures, read from the database when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Count, F
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from marketplace.jobs.models import Job, JobStatus
from marketplace.tiers.models import LIVE, Machine, Stay, ZoneTiers


class TiersCollector(Collector):
    """Every process of the house would answer the same, so none keeps counts of its own."""

    def describe(self) -> list[Metric]:
        # Registering must not ask the database.
        return []

    def collect(self) -> Iterator[Metric]:
        pressure = GaugeMetricFamily(
            "finetender_tiers_pressure", "Demand over capacity (p)", labels=["zone"]
        )
        threshold = GaugeMetricFamily(
            "finetender_tiers_threshold_seconds", "Serverless budget (F)", labels=["zone"]
        )
        for tiers in ZoneTiers.objects.select_related("zone").order_by("pk"):
            pressure.add_metric([tiers.zone.name], tiers.pressure)
            threshold.add_metric([tiers.zone.name], tiers.threshold_s)
        yield pressure
        yield threshold
        machines = GaugeMetricFamily(
            "finetender_tiers_machines", "Rented machines", labels=["tier", "status"]
        )
        rows = Machine.objects.values_list("tier", "status").order_by("tier", "status")
        for tier, status, count in rows.annotate(count=Count("pk")):
            machines.add_metric([tier, status], count)
        yield machines
        live = Machine.objects.filter(status__in=LIVE)
        yield _one(
            "finetender_tiers_cost_usd_per_hour",
            "Rent of live machines",
            sum(live.values_list("price_micros_per_h", flat=True)) / 1e6,
        )
        yield _one(
            "finetender_tiers_orphans",
            "Machines found running unasked",
            Machine.objects.filter(is_orphan=True).count(),
        )
        yield _one(
            "finetender_tiers_stays", "Jobs' stays on serverless so far", Stay.objects.count()
        )
        late = Job.objects.filter(status=JobStatus.SUCCEEDED, finished_at__gt=F("deadline_at"))
        yield _one(
            "finetender_tiers_deadlines_missed", "Jobs done after their deadline", late.count()
        )


def _one(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, value=value)
