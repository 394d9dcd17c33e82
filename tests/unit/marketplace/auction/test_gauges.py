"""What Prometheus reads of the market, and the rules and pictures made for it."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from django.test import RequestFactory

from marketplace.auction.gauges import MarketCollector
from marketplace.auction.models import Bid
from marketplace.config.health import metrics
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[4]
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "docker" / "prometheus" / "dashboard.json"
GUIDE = ROOT / "docs" / "guides" / "alerts.md"
#: Series under which each alert is raised.
RAISED_BY = {
    "MarketAway": 'up{job="finetender"} 0',
    "ClockSilent": 'finetender_probe_ok{part="beat", probe="Clock"} 0',
    "LaneSilent": 'finetender_probe_ok{part="lane", probe="Decisions"} 0',
    "BidsWait": 'finetender_bid_oldest_pending_seconds{zone="tiny"} 20',
    "WorkersSilent": 'finetender_probe_ok{part="worker", probe="Jobs"} 0',
    "NoNodes": 'finetender_probe_ok{part="nodes", zone="tiny"} 0',
    "BooksWrong": 'finetender_probe_ok{part="money", probe="Books"} 0',
    "TaskFails": 'finetender_task_failing{task="auction.sweep"} 1',
    "LeasesLate": 'finetender_leases{zone="tiny", state="late"} 1',
    "WorkLate": 'finetender_work{kind="exports.push", state="late"} 1',
    "WorkFailed": 'finetender_work{kind="exports.push", state="failed"} 1',
    "DecisionsSlow": 'finetender_bid_decision_seconds_bucket{zone="tiny", le="%s"} %s',
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
    owner = builders.organisation(usd=20)
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
    bid = market.bid(builders.organisation(usd=20), zone)
    old, lately = NOW - timedelta(hours=3), NOW - timedelta(minutes=1)
    # Its id is as old as it is.
    Bid.objects.filter(pk=bid.pk).update(status="refused", created_at=old, decided_at=lately)
    of_zone = json.dumps({"zone": zone.name})
    assert read_gauges()[f"finetender_bid_decision_seconds_sum{of_zone}"] == 10_740
    Bid.objects.update(status="cancelled")
    assert read_gauges()[f"finetender_bid_decision_seconds_count{of_zone}"] == 0


def test_rules_and_pictures_name_figures_that_there_are(zone, settings):
    settings.METRICS_TOKEN = "one"
    request = RequestFactory().get("/metrics", headers={"Authorization": "Bearer one"})
    said = set(re.findall(r"^# TYPE (\w+)", metrics(request).content.decode(), re.MULTILINE))
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    expressions = [rule["expr"] for rule in rules]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        expressions += [target["expr"] for target in panel["targets"]]
    named = set(re.findall(r"\bfinetender_\w+", " ".join(expressions)))
    assert {name.removesuffix("_bucket") for name in named} <= said
    assert len(rules) >= 10
    assert [rule["alert"] for rule in rules] == re.findall(r"^## (\w+)", GUIDE.read_text(), re.M)
    for rule in rules:
        assert rule["annotations"]["runbook"].partition("#")[2] == rule["alert"].lower()


@pytest.mark.nightly
def test_each_rule_raises_its_alert_and_no_other(tmp_path):
    rules = {
        each["alert"]: each for each in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    }
    assert rules.keys() == RAISED_BY.keys()
    tests = []
    for name, series in RAISED_BY.items():
        inputs = [series]
        if name == "DecisionsSlow":
            inputs = [series % pair for pair in (("2.0", 9), ("5.0", 10), ("+Inf", 10))]
        split = [text.rpartition(" ")[::2] for text in inputs]
        tests.append(
            {
                "interval": "30s",
                "input_series": [{"series": one, "values": f"{value}x40"} for one, value in split],
                "promql_expr_test": [
                    {
                        "expr": 'count(ALERTS{alertstate="firing"}) by (alertname)',
                        "eval_time": "15m",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}],
                    }
                ],
            }
        )
    case = tmp_path / "case.yml"
    case.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(case)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
