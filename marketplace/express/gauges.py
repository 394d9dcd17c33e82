"""Prometheus figures of the lanes and the bank, read from the database when they are asked for.

=========================================== ============== =======================================
name                                        labels         what
=========================================== ============== =======================================
finetender_express_seats                    zone, state    bought: idle or busy; cold: unsold
finetender_express_floor_seats              zone           what the newsvendor rule wants
finetender_express_requests                 zone, answer   of the last hour
finetender_express_late                     zone           jobs of the last hour over their SLO
finetender_express_cost_usd_per_hour        zone           paid for seats in the last hour
finetender_express_bank_prompts                            in the bank
finetender_express_bank_hits_total                         jobs that started from one
finetender_express_lookup_gain                             mean loss that a hit saved
=========================================== ============== =======================================
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from marketplace.common import clock
from marketplace.express.selectors import summarize_bank, summarize_lanes


class ExpressCollector(Collector):
    """Every process of the market would answer the same, so none keeps counts of its own."""

    def describe(self) -> list[Metric]:
        # Registering must not ask the database.
        return []

    def collect(self) -> Iterator[Metric]:
        seats = GaugeMetricFamily(
            "finetender_express_seats", "Seats bought, and unsold places", labels=["zone", "state"]
        )
        floor = GaugeMetricFamily(
            "finetender_express_floor_seats", "Seats that recent demand repays", labels=["zone"]
        )
        requests = GaugeMetricFamily(
            "finetender_express_requests",
            "Requests of the last hour",
            labels=["zone", "answer"],
        )
        late = GaugeMetricFamily(
            "finetender_express_late", "Jobs of the last hour over their SLO", labels=["zone"]
        )
        cost = GaugeMetricFamily(
            "finetender_express_cost_usd_per_hour",
            "Paid for seats in the last hour",
            labels=["zone"],
        )
        for one in summarize_lanes(now=clock.now()):
            zone = one.lane.zone.name
            seats.add_metric([zone, "idle"], one.idle)
            seats.add_metric([zone, "busy"], one.busy)
            seats.add_metric([zone, "cold"], one.cold)
            floor.add_metric([zone], one.lane.floor_seats)
            for answer in ("admitted", "offered", "refused"):
                requests.add_metric([zone, answer], getattr(one, answer))
            late.add_metric([zone], one.late)
            cost.add_metric([zone], one.cost_micros / 1e6)
        yield from (seats, floor, requests, late, cost)
        bank = summarize_bank()
        yield GaugeMetricFamily(
            "finetender_express_bank_prompts", "Prompts in the bank", value=bank.prompts
        )
        yield GaugeMetricFamily(
            "finetender_express_lookup_gain", "Mean loss that a hit saved", value=bank.mean_gain
        )
        yield CounterMetricFamily(
            "finetender_express_bank_hits", "Jobs that started from a prompt", value=bank.hits
        )
