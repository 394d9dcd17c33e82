"""Stages of a bid's life as spans of one trace, from its request to its settlement."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.common import traces
from marketplace.fleet.models import Node
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots, record_progress
from tests import builders, job_builders
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.api.client import body_of
from tests.unit.marketplace.api.web_server import post_all, request_of
from workers.protocol.reports import SliceEnd

STAGES = [
    "bid.place",
    "bid.request",
    "bid.receipt",
    "bid.decision",
    "job.plan",
    "job.first_step",
    "job.settlement",
]


@pytest.fixture
def spans(settings, monkeypatch):
    """What is exported, as OpenTelemetry's own exporter for tests keeps it."""
    exporter = InMemorySpanExporter()
    provider = traces.build_provider(exporter, in_batches=False)
    monkeypatch.setattr(traces, "_load_provider", lambda: provider)
    settings.TRACES_EXPORTER = "otlp"
    exporter.provider = provider[0]
    return exporter


def sell(zone) -> tuple[Bid, Job]:
    owner = builders.organisation(usd=20)
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    return bid, Job.objects.get(bid_id=bid.pk)


def train(zone, node, job) -> None:
    now = market.slot_at(zone, job.cells[0][0])
    type(node).objects.update(last_heartbeat_at=now)
    dispatch_slots(now=now)
    held = job_builders.lease(job)
    for seq, step in ((1, 0), (2, 1), (3, 2)):
        report = job_builders.report(held, job_builders.event(seq, step=step, train_loss=2.0))
        record_progress(node=node, report=report, now=now)
    market.end_slice(job, status=SliceEnd.FINISHED, now=now)
    settle_finished(now=now)


@pytest.mark.django_db(transaction=True)
def test_a_real_sale_is_one_trace_from_its_request_to_its_settlement(spans, api, zone, lane):
    body = body_of(api, zone)
    [answer] = post_all([request_of(api, body, key="k", **{"X-Request-Id": "r1"})])
    assert answer.status_code == 201, answer.content
    # The same request again is the same bid, and no stage of it.
    [again] = post_all([request_of(api, body, key="k", **{"X-Request-Id": "r2"})])
    assert again.json()["id"] == answer.json()["id"]
    bid, node = Bid.objects.get(), Node.objects.get()
    train(zone, node, Job.objects.select_related("zone").get(bid_id=bid.pk))
    found = {span.name: span for span in spans.get_finished_spans()}
    assert sorted(span.name for span in spans.get_finished_spans()) == sorted(STAGES)
    assert {span.attributes["finetender.bid_id"] for span in found.values()} == {bid.pk}
    assert len({span.context.trace_id for span in found.values()}) == 1
    assert len({span.context.span_id for span in found.values()}) == len(STAGES)
    root = found.pop("bid.place")
    assert root.parent is None
    assert {span.parent.span_id for span in found.values()} == {root.context.span_id}
    assert found["bid.request"].attributes["finetender.request_id"] == "r1"
    assert found["bid.request"].attributes["finetender.request"] == "POST /api/bids"
    assert found["bid.decision"].attributes["finetender.status"] == "admitted"
    assert found["bid.decision"].attributes["finetender.position"] == bid.position
    assert found["job.plan"].attributes["finetender.node"] == node.pk
    assert found["job.settlement"].attributes["finetender.status"] == "succeeded"
    assert all(span.start_time <= span.end_time for span in (root, *found.values()))


@pytest.mark.django_db
def test_what_is_not_committed_is_no_span(spans, django_capture_on_commit_callbacks):
    zone = market.zone()
    market.node(zone)
    with django_capture_on_commit_callbacks(execute=False):
        sell(zone)
    assert spans.get_finished_spans() == ()


@pytest.mark.django_db
def test_a_refused_bid_ends_with_its_decision(spans, django_capture_on_commit_callbacks):
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd=20)
    with django_capture_on_commit_callbacks(execute=True):
        bid = market.bid(owner, zone, price_micros=1)
        decide_pending_bids(zone=zone, now=NOW)
    found = {span.name: span for span in spans.get_finished_spans()}
    assert sorted(found) == ["bid.decision", "bid.place", "bid.receipt"]
    decision = found["bid.decision"].attributes
    assert decision["finetender.refusal"] == Bid.objects.get(pk=bid.pk).refusal != ""
    assert decision["finetender.cells"] == 0
    assert not [name for name in decision if "price" in name or "payment" in name]


@pytest.mark.django_db
@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ALWAYS_ON, TraceIdRatioBased(0.5)])
def test_all_spans_of_a_bid_are_kept_or_none(spans, sampler):
    spans.provider.sampler = ParentBased(sampler)
    kept = []
    for number in range(40):
        spans.clear()
        for name in ("bid.receipt", traces.ROOT, "job.settlement"):
            traces._send(name, bid_id=f"bid_{number}", since=NOW, until=NOW, facts={})
        kept.append(len(spans.get_finished_spans()))
    assert set(kept) <= {0, 3}
    if sampler is ALWAYS_OFF:
        assert not any(kept)
    elif sampler is ALWAYS_ON:
        assert all(kept)
    else:
        assert 5 < sum(map(bool, kept)) < 35


def test_a_stage_that_is_sent_twice_is_one_span(spans):
    for _ in range(2):
        traces._send("job.plan", bid_id="bid_1", since=NOW, until=NOW, facts={"node": None})
    first, second = spans.get_finished_spans()
    assert first.context.span_id == second.context.span_id
    assert dict(first.attributes) == {"finetender.bid_id": "bid_1"}
    assert first.end_time - first.start_time == 0


def test_a_clock_that_goes_back_gives_no_negative_time(spans):
    early = NOW - timedelta(hours=1)
    traces._send("job.plan", bid_id="bid_1", since=NOW, until=early, facts={})
    [span] = spans.get_finished_spans()
    assert span.end_time == span.start_time


def test_without_the_setting_nothing_that_sends_is_even_imported():
    script = (
        "import sys, django; django.setup();"
        "from marketplace.common.traces import record_stage, record_request;"
        "from django.conf import settings;"
        "record_stage('bid.place', bid_id='b', since=None); record_request(bid_id='b');"
        "assert settings.TRACES_EXPORTER == '';"
        "print([n for n in sys.modules if n.startswith(('opentelemetry.sdk.trace.export',"
        "'opentelemetry.exporter'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
