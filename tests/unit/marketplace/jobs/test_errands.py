"""What holds of every kind of errand: one answer counts, of the node that was asked, in time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from marketplace.checks import errands as checks
from marketplace.checks.fault_checks import open_fault_checks
from marketplace.checks.models import FaultCheck, SpotCheck
from marketplace.checks.sampling import choose_checks
from marketplace.checks.scores import open_score_checks
from marketplace.exports.asking import ask_export
from marketplace.exports.errands import ExportErrands
from marketplace.exports.models import Export, ExportForm
from marketplace.fleet.models import Node
from marketplace.fleet.tokens import revoke_node_token
from marketplace.jobs.errands import hand_out_errands, sweep_errands
from marketplace.jobs.models import Errand, ErrandState, Job
from marketplace.jobs.services import dispatch_slots, record_progress
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Earning, Entry
from marketplace.warm.models import Probe
from marketplace.warm.probes import ask_probe
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.common.threads import at_once
from tests.warm_builders import data_of
from workers.protocol.checks import CheckResult, StepLoss
from workers.protocol.errands import ErrandResult
from workers.protocol.fault_checks import FaultCheckResult
from workers.protocol.probes import ProbeResult
from workers.protocol.reports import Fault, SliceEnd
from workers.protocol.wire import dumps, to_json

pytestmark = pytest.mark.django_db

GGUF = b"what an export is made of"


@dataclass
class Asked:
    """An errand that a node was asked for, and what it answers."""

    kind: str
    model: type[Errand]
    #: ``None``: a file.
    found: Any
    node: Node
    api_token: str
    clock: Callable[[datetime], None]

    def load(self) -> Errand:
        return self.model.objects.get()

    def answer(self, *, token: str | None = None, api_token: str | None = None) -> Any:
        path = f"/internal/v1/errands/{token or self.load().token}"
        headers = {"Authorization": f"Bearer {api_token or self.api_token}"}
        if self.found is None:
            kind = "application/octet-stream"
            return Client().put(f"{path}/file", data=GGUF, content_type=kind, headers=headers)
        body = dumps(ErrandResult(found=to_json(self.found)))
        return self.post(f"{path}/result", body, headers)

    def refuse(self) -> Any:
        headers = {"Authorization": f"Bearer {self.api_token}"}
        path = f"/internal/v1/errands/{self.load().token}/result"
        body = dumps(ErrandResult(reason="It is too hot here.", fault=Fault.SYSTEM))
        return self.post(path, body, headers)

    @staticmethod
    def post(path: str, body: str, headers: dict[str, str]) -> Any:
        return Client().post(path, data=body, content_type="application/json", headers=headers)


def take_picture(asked: Asked, media) -> Any:
    """Everything that an answer could leave behind."""
    files = sorted(path for path in media.rglob("*") if path.is_file())
    return asked.model.objects.values().get(), Entry.objects.count(), files


def finish_job(zone, node, owner=None) -> Job:
    job = build.job(zone, (0, node), **({} if owner is None else {"organisation": owner}))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    record_progress(node=node, report=build.report(held, build.event(1, step=12)), now=at(1))
    market.end_slice(job, status=SliceEnd.FINISHED, now=at(5), valid_loss_after=1.0)
    dispatch_slots(now=at(1))
    job.refresh_from_db()
    return job


def ask_for_export(zone, node):
    owner = builders.organisation(usd="10")
    worker = market.node(zone)
    job = finish_job(zone, worker, owner)
    Node.objects.filter(pk=worker.pk).update(status="suspended")
    ask_export(organisation=owner, asked_by=None, job=job, form=ExportForm.GGUF_F16, now=at(2))
    return Export, None


def ask_for_check(zone, node):
    worker = market.node(zone)
    job = build.job(zone, *((slot, worker) for slot in range(4)))
    dispatch_slots(now=NOW)
    events = [build.event(step, step=step, train_loss=2.0) for step in range(1, 9)]
    record_progress(node=worker, report=build.report(build.lease(job), *events), now=at(1))
    choose_checks(now=at(2))
    return SpotCheck, CheckResult(tuple(StepLoss(step, 2.0) for step in range(1, 9)))


def ask_for_score(zone, node):
    job = finish_job(zone, market.node(zone))
    job.valid_loss, job.stopped_early = 1.0, True
    job.save()
    assert open_score_checks([job], now=at(2)) == []
    return SpotCheck, CheckResult(score=1.0)


def ask_for_probe(zone, node):
    data = data_of(builders.organisation(), zone)
    probe = ask_probe(zone=zone, dataset=data, shape="x", sequence_length=64, donors=(), now=at(2))
    assert probe is not None
    return Probe, ProbeResult(3.0, (), 0.5)


def ask_about_a_fault(zone, node):
    job = build.job(zone, (0, market.node(zone)))
    dispatch_slots(now=NOW)
    market.end_slice(job, status=SliceEnd.FAILED, step=3, now=at(1), fault=Fault.USER)
    assert open_fault_checks(now=at(2)) == 1
    return FaultCheck, FaultCheckResult("The loss is not a number.", 3)


KINDS = {
    "export": ask_for_export,
    "check": ask_for_check,
    "score": ask_for_score,
    "probe": ask_for_probe,
    "fault": ask_about_a_fault,
}


@pytest.fixture(params=KINDS)
def asked(request, settings, tmp_path, monkeypatch) -> Asked:
    settings.MEDIA_ROOT = tmp_path
    settings.SPOT_CHECK_SHARE = 1.0
    monkeypatch.setattr(checks, "WEIGHTS_WITHIN", timedelta(0))
    # What an export's file may be is for its own tests.
    monkeypatch.setattr(ExportErrands, "compose_file", lambda _self, _errand, up: nullcontext(up))

    def set_clock(now: datetime) -> None:
        monkeypatch.setattr("marketplace.common.clock.now", lambda: now)

    zone = market.zone()
    node, reply = build.joined(zone)
    model, found = KINDS[request.param](zone, node)
    hand_out_errands(now=at(2))
    made = Asked(request.param, model, found, node, reply.api_token, set_clock)
    errand = made.load()
    assert (errand.state, errand.node, errand.attempts) == (ErrandState.ASKED, node, 1)
    set_clock(at(3))
    return made


def test_an_answer_is_taken_and_paid_once_however_often_it_is_sent(asked):
    for _ in range(2):
        assert asked.answer().status_code in (200, 201)
    errand = asked.load()
    assert (errand.state, errand.ended_at) == (ErrandState.DONE, at(3))
    # The job of the score has no price, of which a share would be paid.
    assert (errand.paid_micros > 0) == (asked.kind in ("export", "check", "fault"))
    assert sum(Earning.objects.values_list("amount_micros", flat=True)) == errand.paid_micros
    assert check_ledger().balanced


def test_another_nodes_answer_is_refused_without_a_trace(asked, tmp_path):
    _, other = build.joined(asked.node.zone, name="gpu-2")
    before = take_picture(asked, tmp_path)
    answer = asked.answer(api_token=other.api_token)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_errand")
    assert asked.answer(token="made-up").json()["code"] == "unknown_errand"
    assert take_picture(asked, tmp_path) == before


def test_a_late_answer_is_refused_without_a_trace(asked, tmp_path):
    expires_at = asked.load().expires_at
    asked.clock(expires_at + timedelta(seconds=1))
    before = take_picture(asked, tmp_path)
    answer = asked.answer()
    assert (answer.status_code, answer.json()["code"]) == (409, "errand_over")
    assert take_picture(asked, tmp_path) == before
    sweep_errands(now=expires_at)
    swept = take_picture(asked, tmp_path)
    assert asked.answer().status_code == 409
    assert take_picture(asked, tmp_path) == swept


def test_a_node_whose_credentials_are_revoked_neither_answers_nor_reads(asked, tmp_path):
    revoke_node_token(node=asked.node, now=at(3))
    before = take_picture(asked, tmp_path)
    assert asked.answer().status_code == 401
    path = f"/internal/v1/errands/{asked.load().token}/blobs/dataset"
    headers = {"Authorization": f"Bearer {asked.api_token}"}
    assert Client().get(path, headers=headers).status_code == 401
    assert take_picture(asked, tmp_path) == before


@pytest.mark.django_db(transaction=True)
def test_two_answers_at_once_count_once(asked, tmp_path):
    files = len(take_picture(asked, tmp_path)[2])
    answers = at_once([asked.answer] * 2)
    assert {answer.status_code for answer in answers} <= {200, 201, 409}
    errand = asked.load()
    assert errand.state == ErrandState.DONE
    assert sum(Earning.objects.values_list("amount_micros", flat=True)) == errand.paid_micros
    assert check_ledger().balanced
    # Of two files one is kept.
    assert len(take_picture(asked, tmp_path)[2]) == files + (asked.found is None)


def test_an_errand_that_no_node_can_do_is_asked_again_under_another_token_then_given_up(asked):
    tokens = set()
    for attempt in range(1, 4):
        errand = asked.load()
        if errand.state == ErrandState.FAILED:
            break
        assert errand.attempts == attempt
        tokens.add(errand.token)
        for _ in range(2):
            assert asked.refuse().status_code == 200
        hand_out_errands(now=at(3))
    errand = asked.load()
    assert (errand.state, errand.ended_at, errand.paid_micros) == (ErrandState.FAILED, at(3), 0)
    assert len(tokens) == errand.attempts == (1 if asked.model is Probe else 3)
    assert not Earning.objects.exists()
    assert hand_out_errands(now=at(4)) == 0
