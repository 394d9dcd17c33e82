"""Measurements go to an organisation's MLflow server: a real one at night, wrong ones always."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from marketplace.common.encryption import decrypt_text
from marketplace.common.errors import UserError
from marketplace.common.models import DurableWork
from marketplace.embedded.servers import find_free_port
from marketplace.tracking import mlflow_server
from marketplace.tracking.mlflow_server import JOB_TAG, METRICS_MAX
from marketplace.tracking.models import TrackedRun, TrackingKey, TrackingService
from marketplace.tracking.services import set_tracking_key, track_bid
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.own_environment import find_own_python
from tests.unit.marketplace.tracking.test_sending import job, measure, run_sending
from tests.waiting import until
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db(transaction=True)
MLFLOW = TrackingService.MLFLOW
tracked_job = job


@pytest.fixture
def job(tracked_job, settings):
    """A job that runs, whose run at Weights & Biases is not looked at here."""
    settings.TRACKING_PRIVATE = True
    TrackedRun.objects.all().delete()
    DurableWork.objects.all().delete()
    return tracked_job


def track(job, address, key="", **named):
    owner = job.organisation
    set_tracking_key(
        organisation=owner,
        service=MLFLOW,
        address=address,
        key=key,
        set_by=builders.owner_of(owner),
        now=NOW,
    )
    asked = {"service": MLFLOW, "project": "tone of voice", "now": NOW} | named
    assert track_bid(bid_id=job.bid_id, organisation_id=owner.pk, **asked)


def send(at=NOW):
    assert run_sending(at) == 1
    return TrackedRun.objects.get()


@contextmanager
def run_server(answer) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """A server that answers what it is told; its address, and what it was asked."""
    asked: list[tuple[str, str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = self.path.removeprefix("/api/2.0/mlflow/")
            asked.append((path, self.headers.get("authorization", ""), json.loads(body or b"null")))
            status, value = answer(path)
            sent = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("location", "http://127.0.0.1:9/")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "ends", "reason"),
    [
        (401, {}, True, "answered 401"),
        (403, {}, True, "answered 403"),
        (302, {}, False, "redirects are not followed"),
        (500, {}, False, "answered 500"),
        (200, b"<html>", False, "What answers at the address is no MLflow server."),
        (200, b"[" * 100_000, False, "What answers at the address is no MLflow server."),
        (200, [], False, "What answers at the address is no MLflow server."),
        (200, {"experiment": {"experiment_id": "x" * 99}}, False, "is no MLflow server."),
        (200, {"experiment": {"experiment_id": "\0"}}, False, "is no MLflow server."),
    ],
)
def test_a_server_that_refuses_ends_the_run_and_one_that_fails_is_tried_again(
    job, status, body, ends, reason
):
    measure(job, 1, train_loss=2.5)
    with run_server(lambda _path: (status, body)) as (address, asked):
        track(job, address, key="ana:secret")
        run = send()
    # One request only: nothing is made where the first one is not answered well.
    assert [path for path, *_ in asked] == ["experiments/get-by-name?experiment_name=tone+of+voice"]
    assert asked[0][1] == "Basic YW5hOnNlY3JldA=="
    assert (run.ended_at == NOW, reason in run.reason) == (ends, True)
    assert "secret" not in run.reason
    assert DurableWork.objects.count() == int(not ends)
    job.refresh_from_db()
    assert job.status == "running"


def test_a_long_run_is_sent_in_requests_of_whole_steps(job, monkeypatch):
    had = [{"key": "train/loss", "value": 1.0, "timestamp": 0, "step": "2"}]
    run = {"info": {"run_id": "r1"}, "data": {"params": [{"key": "a", "value": "b"}]}}
    answers = {
        "experiments/get-by-name?experiment_name=tone+of+voice": {
            "experiment": {"experiment_id": "7"}
        },
        "runs/search": {"runs": [run | {"data": run["data"] | {"metrics": had}}]},
        "runs/log-batch": {},
    }
    for step in range(1, 400):
        measure(job, step, train_loss=2.5, valid_loss=2.0)
    with run_server(lambda path: (200, answers[path])) as (address, asked):
        track(job, f"{address}/", key="token")
        sent = send()
    assert {key for _, key, _ in asked} == {"Bearer token"}
    batches = [body["metrics"] for path, _, body in asked if path == "runs/log-batch"]
    # Three values a step, of 397 steps that the run has not got.
    assert [len(batch) for batch in batches] == [999, 192]
    assert METRICS_MAX == 1_000
    steps = [{metric["step"] for metric in batch} for batch in batches]
    assert (min(steps[0]), steps[0] & steps[1], max(steps[1])) == (3, set(), 399)
    assert (sent.sent_step, sent.url) == (399, f"{address}/#/experiments/7/runs/r1")
    # A server that takes too long of it is asked for the rest another time.
    TrackedRun.objects.update(sent_point=0, sent_step=-1)
    DurableWork.objects.update(due_at=NOW)
    monkeypatch.setattr(mlflow_server, "LOGGED_WITHIN_S", -1.0)
    with run_server(lambda path: (200, answers[path])) as (address, asked):
        track(job, address, key="token")
        late = send()
    assert "runs/log-batch" not in [path for path, *_ in asked]
    assert (late.sent_step, late.reason) == (-1, "MLflow did not take all in time.")
    assert late.ended_at is None


@pytest.mark.parametrize(
    "found",
    [
        {"info": {"run_id": "../../x"}, "data": {}},
        {"info": {"run_id": "r1\0"}, "data": {}},
        {"info": {"run_id": "r1"}, "data": {"params": [1], "metrics": [{"step": float("inf")}]}},
        {"info": {"run_id": "r1"}, "data": {"params": [1], "metrics": [{"step": "9" * 5_000}]}},
        {"info": {"run_id": "r1"}, "data": {"params": [1], "metrics": 7}},
        {"info": ["r1"], "data": {}},
    ],
)
def test_a_run_that_is_none_gets_nothing(job, found):
    measure(job, 1, train_loss=2.5)
    answers = {
        "experiments/get-by-name?experiment_name=tone+of+voice": {
            "experiment": {"experiment_id": "7"}
        },
        "runs/search": {"runs": [found]},
    }
    with run_server(lambda path: (200, answers[path])) as (address, asked):
        track(job, address)
        run = send()
    assert [path for path, *_ in asked] == list(answers)
    assert (run.reason, run.url) == ("What answers at the address is no MLflow server.", "")
    assert run.ended_at is None
    assert DurableWork.objects.count() == 1


def test_an_address_that_may_not_be_asked_is_refused_and_nothing_is_stored(job, settings):
    settings.TRACKING_PRIVATE = False
    for wrong in (
        "",
        "http://mlflow.example.com",
        "ftp://mlflow.example.com",
        "https://ana:secret@mlflow.example.com",
        "https://mlflow.example.com/?a=1",
        "https://mlflow.example.com/#a",
        f"https://mlflow.example.com/{'a' * 300}",
    ):
        with pytest.raises(UserError) as caught:
            track(job, wrong)
        assert (caught.value.code, caught.value.param) == ("invalid_url", "address")
    with pytest.raises(UserError, match="NAME:PASSWORD"):
        track(job, "https://mlflow.example.com", key="two words")
    assert not TrackingKey.objects.filter(service=MLFLOW).exists()
    assert not TrackedRun.objects.exists()


def test_a_server_inside_the_operators_network_is_not_asked(job, settings):
    measure(job, 1, train_loss=2.5)
    with run_server(lambda _path: (200, {})) as (address, asked):
        track(job, address)
        settings.TRACKING_PRIVATE = False
        run = send()
    assert asked == []
    assert "is not encrypted; use https" in run.reason


def test_a_bid_has_a_run_at_each_service_and_each_has_its_own_key(job):
    track(job, "https://mlflow.example.com", key="t" * 40)
    owner = job.organisation.pk
    assert track_bid(
        bid_id=job.bid_id,
        organisation_id=owner,
        service=TrackingService.WANDB,
        project="tone",
        now=NOW,
    )
    assert {run.service for run in TrackedRun.objects.all()} == {"mlflow", "wandb"}
    assert DurableWork.objects.count() == 2
    keys = {stored.service: decrypt_text(stored.key) for stored in TrackingKey.objects.all()}
    assert keys == {"mlflow": "t" * 40, "wandb": "0123456789" * 4}
    assert "t" * 40 not in TrackingKey.objects.get(service=MLFLOW).key


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A MLflow server of its own package; ``MLFLOW_PYTHON`` is an environment that has it."""
    python = find_own_python("mlflow.txt", tmp_path / "own", variable="MLFLOW_PYTHON")
    address = f"http://127.0.0.1:{find_free_port()}"
    process = subprocess.Popen(
        (
            *(python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"),
            *("--port", address.rpartition(":")[2]),
            *("--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"),
            *("--default-artifact-root", str(tmp_path / "artifacts")),
        ),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: answers(address), what="MLflow answers", within_s=300)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.HTTPError:
        return False


def read_run(address: str, job_id: str) -> dict[str, Any]:
    asked = {"experiment_ids": ["1"], "filter": f"tags.`{JOB_TAG}` = '{job_id}'"}
    [run] = httpx.post(f"{address}/api/2.0/mlflow/runs/search", json=asked).json()["runs"]
    return run


def read_losses(address: str, run_id: str) -> list[tuple[int, float]]:
    query = {"run_id": run_id, "metric_key": "train/loss"}
    found = httpx.get(f"{address}/api/2.0/mlflow/metrics/get-history", params=query).json()
    return [(metric["step"], metric["value"]) for metric in found["metrics"]]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_run_grows_at_a_real_server_and_each_step_stands_there_once(server, job):
    measure(job, 1, train_loss=2.5)
    measure(job, 2, train_loss=2.25, valid_loss=2.0)
    track(job, server, tags=["nightly"])
    first = send()
    run = read_run(server, job.pk)
    assert first.url == f"{server}/#/experiments/1/runs/{run['info']['run_id']}"
    assert (run["info"]["status"], run["info"]["run_name"]) == ("RUNNING", job.name)
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert (tags[JOB_TAG], tags["nightly"]) == (job.pk, "true")
    params = {param["key"]: param["value"] for param in run["data"]["params"]}
    assert params["base_model"] == job.zone.base_model_name
    assert params["adapter.rank"] == str(job.terms.adapter.rank)
    assert read_losses(server, run["info"]["run_id"]) == [(1, 2.5), (2, 2.25)]

    # A batch whose worker died is sent again and stands there once.
    TrackedRun.objects.update(sent_point=0, sent_step=-1)
    DurableWork.objects.update(due_at=NOW)
    send()
    assert read_losses(server, run["info"]["run_id"]) == [(1, 2.5), (2, 2.25)]

    measure(job, 3, train_loss=2.0)
    market.end_slice(job, status=SliceEnd.FINISHED, now=NOW)
    last = send(NOW + timedelta(seconds=30))
    assert (last.ended_at, last.reason) == (NOW + timedelta(seconds=30), "")
    again = read_run(server, job.pk)
    assert again["info"]["run_id"] == run["info"]["run_id"]
    assert again["info"]["status"] == "FINISHED"
    losses = read_losses(server, run["info"]["run_id"])
    assert losses == [(1, 2.5), (2, 2.25), (3, 2.0)]
    print(f"mlflow {httpx.get(f'{server}/version').text} | a run with its losses | {losses}")
    whole = json.dumps(again)
    node = job.zone.nodes.get()
    for secret in (node.name, node.pk, str(job.price_micros), job.organisation_id):
        assert secret not in whole
