"""What Prometheus reads of the market, and the rules and pictures made for it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import transaction
from django.test import Client

from marketplace.auction.gauges import MarketCollector
from marketplace.auction.models import Bid, LogCheck, Pricing
from marketplace.auction.probes import BOOKS_TASK, LANE_TASK, WORKER_TASK
from marketplace.common.heartbeats import record_failure
from marketplace.common.models import DurableWork, Heartbeat
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import Job, NodePlan, Slice
from marketplace.jobs.services import dispatch_slots
from tests import builders, job_builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[4]
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "docker" / "prometheus" / "dashboard.json"
GUIDE = ROOT / "docs" / "guides" / "alerts.md"
PROMTOOL = shutil.which("promtool")
OLD = NOW - timedelta(minutes=5)


def silence(*tasks: str) -> None:
    Heartbeat.objects.filter(task__in=tasks).update(ok_at=OLD)


def place_bids(zone: Zone, *, of: int = 1, **changed: Any) -> None:
    owner = builders.organisation(usd="20")
    made = [market.bid(owner, zone).pk for _ in range(of)]
    Bid.objects.filter(pk__in=made).update(**changed)


def lose_lease(zone: Zone) -> None:
    job_builders.job(zone, (0, Node.objects.get()))
    dispatch_slots(now=NOW)
    NodePlan.objects.update(taken_at=NOW)
    Job.objects.update(progressed_at=NOW)
    Slice.objects.update(lease_expires_at=NOW - timedelta(seconds=1))


def be_late(zone: Zone) -> None:
    job_builders.job(zone, (5, Node.objects.get()), deadline_at=OLD)


def put_off(**fields: Any) -> None:
    DurableWork.objects.create(kind="exports.push", key="one", due_at=OLD, **fields)


#: How a market is broken for each alert, and what its rule raises beside it.
BROKEN: dict[str, tuple[Callable[[Zone], object], set[str]]] = {
    "MarketAway": (lambda _: None, set()),
    "ClockSilent": (
        lambda _: silence(LANE_TASK, WORKER_TASK),
        {"LaneSilent", "WorkersSilent"},
    ),
    "LaneSilent": (lambda _: silence(LANE_TASK), set()),
    "BidsWait": (lambda zone: place_bids(zone, created_at=NOW - timedelta(seconds=20)), set()),
    "WorkersSilent": (lambda _: silence(WORKER_TASK), set()),
    "NoNodes": (lambda _: Node.objects.update(status="offline"), set()),
    "BooksWrong": (
        lambda _: record_failure(BOOKS_TASK, "BooksUnbalanced: no", now=NOW),
        {"TaskFails"},
    ),
    "TaskFails": (lambda _: record_failure("tiers.tick", "ValueError: x", now=NOW), set()),
    "LeasesLate": (lose_lease, set()),
    "WorkLate": (lambda _: put_off(), set()),
    "WorkFailed": (lambda _: put_off(state="failed"), set()),
    "DecisionsSlow": (
        lambda zone: place_bids(
            zone, of=3, status="refused", created_at=OLD, decided_at=OLD + timedelta(seconds=4)
        ),
        set(),
    ),
    "JobsLate": (be_late, set()),
}


@pytest.fixture
def zone(monkeypatch):
    monkeypatch.setattr("marketplace.common.clock.now", lambda: NOW)
    made = market.zone()
    market.node(made)
    builders.beat_everything()
    return made


def read_gauges() -> dict[str, float]:
    samples = [sample for family in MarketCollector().collect() for sample in family.samples]
    return {
        sample.name + json.dumps(dict(sorted(sample.labels.items()))): sample.value
        for sample in samples
    }


def test_waiting_and_decided_bids_are_counted_by_zone(zone):
    owner = builders.organisation(usd="20")
    answered, waiting = market.bid(owner, zone), market.bid(owner, zone)
    times = {"created_at": NOW - timedelta(seconds=40), "decided_at": NOW - timedelta(seconds=39.8)}
    Bid.objects.filter(pk=answered.pk).update(status="refused", **times)
    Bid.objects.filter(pk=waiting.pk).update(created_at=NOW - timedelta(seconds=20))
    found = read_gauges()
    of_zone = json.dumps({"zone": zone.name})
    assert found[f"finetender_bids_pending{of_zone}"] == 1
    assert found[f"finetender_bid_oldest_pending_seconds{of_zone}"] == 20
    assert found[f"finetender_bid_decision_seconds_count{of_zone}"] == 1
    for end, count in (("0.1", 0), ("0.25", 1), ("+Inf", 1)):
        labels = json.dumps({"le": end, "zone": zone.name})
        assert found[f"finetender_bid_decision_seconds_bucket{labels}"] == count
    assert found[f"finetender_nodes{json.dumps({'status': 'online', 'zone': zone.name})}"] == 1


def test_a_bid_that_waited_for_hours_is_among_those_decided_lately(zone):
    bid = market.bid(builders.organisation(usd="20"), zone)
    old, lately = NOW - timedelta(hours=3), NOW - timedelta(minutes=1)
    # Its id is as old as it is.
    Bid.objects.filter(pk=bid.pk).update(status="refused", created_at=old, decided_at=lately)
    of_zone = json.dumps({"zone": zone.name})
    assert read_gauges()[f"finetender_bid_decision_seconds_sum{of_zone}"] == 10_740
    Bid.objects.update(status="cancelled")
    assert read_gauges()[f"finetender_bid_decision_seconds_count{of_zone}"] == 0


def test_rules_and_pictures_name_figures_that_there_are(zone, settings):
    settings.METRICS_TOKEN = "one"
    # Twice: the first answer is counted by then.
    for _ in range(2):
        answer = Client().get("/metrics", headers={"Authorization": "Bearer one"})
    said = set(re.findall(r"^# TYPE (\w+)", answer.content.decode(), re.MULTILINE))
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    expressions = [rule["expr"] for rule in rules]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        expressions += [target["expr"] for target in panel["targets"]]
    named = {name for each in expressions for name in find_metrics(each)}
    assert {name.removesuffix("_bucket") for name in named} <= said | {"up"}
    assert len(rules) >= 10
    assert [rule["alert"] for rule in rules] == re.findall(r"^## (\w+)", GUIDE.read_text(), re.M)
    for rule in rules:
        assert rule["annotations"]["runbook"].partition("#")[2] == rule["alert"].lower()


def find_metrics(expression: str) -> list[str]:
    """Names in an expression of Prometheus that are neither functions nor labels."""
    bare = re.sub(r"\{[^}]*\}|\bby \([^)]*\)|\[\w+\]", "", expression)
    return re.findall(r"\b[a-z]\w+\b(?!\s*\()", bare)


def read_series() -> list[dict[str, str]]:
    """What a scrape finds now, as promtool takes it: the same for twenty minutes."""
    samples = [sample for family in MarketCollector().collect() for sample in family.samples]
    series = []
    for sample in samples:
        labels = ", ".join(f"{name}={json.dumps(text)}" for name, text in sample.labels.items())
        values = f"{float(sample.value)}+0x40"
        series.append({"series": f"{sample.name}{{{labels}}}", "values": values})
    return series


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not here")
def test_each_rule_raises_its_alert_in_a_market_that_is_broken_so_and_no_other(zone, tmp_path):
    """The rules are Prometheus' to judge; what they judge is what the market says of itself."""
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    assert BROKEN.keys() == {rule["alert"] for rule in rules}
    cases = [build_case(read_series(), is_up=True, fires=set())]
    for name, (break_market, beside) in BROKEN.items():
        with suppress(_Undone), transaction.atomic():
            break_market(zone)
            is_up = name != "MarketAway"
            series = read_series() if is_up else []
            cases.append(build_case(series, is_up=is_up, fires={name, *beside}))
            raise _Undone
    case = tmp_path / "case.yml"
    case.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": cases}))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", str(case)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class _Undone(Exception):
    """The market is whole again."""


def build_case(series: list[dict[str, str]], *, is_up: bool, fires: set[str]) -> dict[str, Any]:
    up = {"series": 'up{job="finetender"}', "values": f"{int(is_up)}+0x40"}
    firing = {
        "expr": 'count(ALERTS{alertstate="firing"}) by (alertname)',
        "eval_time": "15m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in fires],
    }
    return {"interval": "30s", "input_series": [up, *series], "promql_expr_test": [firing]}


def test_what_was_solved_verified_lost_and_is_held_is_told(zone):
    owner = builders.organisation(usd="20")
    market.bid(owner, zone, price_micros=5_000_000)
    Pricing.objects.update_or_create(zone=zone, defaults={"applied_at": NOW, "status": "failed"})
    LogCheck.objects.create(
        zone=zone, position=7, head_hash="0", state="{}", carried="{}", checked_at=NOW
    )
    lose_lease(zone)
    Slice.objects.update(status="lost", closed_at=NOW)
    Heartbeat.objects.filter(task=LANE_TASK).update(lag_s=1.5)
    found, of_zone = read_gauges(), json.dumps({"zone": zone.name})
    assert found[f"finetender_price_solve_failed{of_zone}"] == 1
    assert found[f"finetender_prices_solved_timestamp_seconds{of_zone}"] == NOW.timestamp()
    assert found[f"finetender_log_verified_position{of_zone}"] == 7
    assert found[f"finetender_log_verified_timestamp_seconds{of_zone}"] == NOW.timestamp()
    assert found[f"finetender_task_lag_seconds{json.dumps({'task': LANE_TASK})}"] == 1.5
    assert found[f"finetender_money_usd{json.dumps({'account': 'wallet_held'})}"] == 5
    assert found[f"finetender_money_usd{json.dumps({'account': 'wallet_available'})}"] == 15
    lost = json.dumps({"state": "lost", "zone": zone.name})
    assert found[f"finetender_leases{lost}"] == 1
    Slice.objects.update(closed_at=NOW - timedelta(hours=2))
    assert read_gauges()[f"finetender_leases{lost}"] == 0
