"""The addresses nodes call, over HTTP, from joining to the finished adapter."""

from __future__ import annotations

import hashlib
import json
import zipfile
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.files.base import ContentFile
from django.test import AsyncClient, Client
from safetensors.numpy import load

from marketplace.auction.witnesses.keys import load_signing_key, sign_release
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.releases import find_release
from marketplace.fleet.services import ListingTerms, create_join_token
from marketplace.jobs.models import Artifact, Checkpoint, Job, JobStatus, MetricPoint
from marketplace.jobs.services import dispatch_slots
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import at
from workers.protocol import messages as protocol
from workers.protocol import reports
from workers.protocol.reports import SliceEnd as Ended
from workers.protocol.wire import dumps, from_json

pytestmark = pytest.mark.django_db

WHOLE = bytes(range(256)) * 4000


class NodeClient:
    """A node's bearer token and Django's test client."""

    def __init__(self, token: str | None) -> None:
        self.http = Client()
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def post(self, path: str, message: Any) -> Any:
        body = message if isinstance(message, (bytes, str)) else dumps(message)
        return self.http.post(
            path, data=body, content_type="application/json", headers=self.headers
        )

    def put(self, path: str, content: bytes, **headers: str) -> Any:
        return self.http.put(
            path,
            data=content,
            content_type="application/octet-stream",
            headers=self.headers | headers,
        )


@pytest.fixture
def clock(monkeypatch):
    """Sets the moment at which the addresses are called."""

    def set_to(moment):
        monkeypatch.setattr("marketplace.common.clock.now", lambda: moment)

    set_to(NOW)
    return set_to


@pytest.fixture
def leased(clock):
    """A joined node that holds a lease, its client, and the lease."""
    zone = market.zone()
    node, reply = build.joined(zone)
    job = build.job(zone, (0, node), (1, node))
    dispatch_slots(now=NOW)
    return NodeClient(reply.api_token), node, build.lease(job)


def problem(response) -> tuple[int, str]:
    assert response["Content-Type"] == "application/problem+json"
    body = json.loads(response.content)
    assert body["status"] == response.status_code
    assert body["detail"]
    return response.status_code, body["code"]


def test_a_node_joins_trains_and_delivers_over_http(clock):
    zone = market.zone()
    provider = market.provider()
    _, secret = create_join_token(
        zone=zone, provider=provider, created_by=None, terms=ListingTerms(1), now=NOW
    )
    stranger = NodeClient(None)
    models = stranger.post(protocol.PATH_JOIN_MODELS, protocol.JoinModelsRequest(secret, 3, 3))
    (model,) = from_json(protocol.JoinModelsReply, models.json()).base_models
    assert (model.name, model.source) == ("tiny", "/nowhere")

    asked = protocol.JoinRequest(token=secret, name="gpu-1", facts=build.facts())
    assert stranger.post(protocol.PATH_JOIN, asked).status_code == 503
    sign_release(find_release(), now=NOW)
    key = load_signing_key(now=NOW).public_key
    joined = from_json(protocol.JoinReply, stranger.post(protocol.PATH_JOIN, asked).json())
    assert (joined.market_key, joined.release_serial) == (key, int(NOW.timestamp()))
    node = NodeClient(joined.api_token)
    beat = protocol.Heartbeat(node_id=joined.node_id, at=NOW.timestamp())
    answer = node.post(protocol.PATH_HEARTBEAT, beat)
    assert from_json(protocol.HeartbeatReply, answer.json()) == protocol.HeartbeatReply()
    assert Node.objects.get().status == NodeStatus.ONLINE

    job = build.job(zone, (0, Node.objects.get()))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    clock(at(1))
    reply = node.post(protocol.PATH_PROGRESS, build.report(held, build.event(1, step=6)))
    assert from_json(reports.ProgressReply, reply.json()).last_seq == 1
    checkpoint = build.safetensors()
    path = protocol.PATH_CHECKPOINT.format(lease_token=held.lease_token, step=6)
    sha256 = hashlib.sha256(checkpoint).hexdigest()
    assert node.put(path, checkpoint, **{"X-Content-SHA256": sha256}).status_code == 201
    path = protocol.PATH_ADAPTER.format(lease_token=held.lease_token)
    assert node.put(path, build.adapter_file()).status_code == 201
    done = build.result(held, Ended.FINISHED, valid_loss_before=3.0, valid_loss_after=2.0)
    ended = node.post(protocol.PATH_RESULT, done)
    assert (ended.status_code, ended.json()) == (200, {"status": "succeeded", "repeated": False})
    again = node.post(protocol.PATH_RESULT, done)
    assert (again.status_code, again.json()) == (200, {"status": "succeeded", "repeated": True})

    job.refresh_from_db()
    assert (job.status, job.finished_at) == (JobStatus.SUCCEEDED, at(1))
    assert (job.valid_loss_before, job.valid_loss) == (3.0, 2.0)
    with Artifact.objects.get(job=job).file.open("rb") as file, zipfile.ZipFile(file) as archive:
        weights = archive.read("adapter_model.safetensors")
    assert {float(value) for one in load(weights).values() for value in one.flat} == {0.5}


@pytest.mark.parametrize("header", [None, "", "Bearer ", "Bearer wrong", "Basic eDp5"])
def test_without_a_nodes_token_every_address_answers_401(leased, header):
    _, node, held = leased
    caller = NodeClient(None)
    caller.headers = {} if header is None else {"Authorization": header}
    token = held.lease_token
    beat = protocol.Heartbeat(node_id=node.pk, at=0.0)
    responses = [
        caller.post(protocol.PATH_HEARTBEAT, beat),
        caller.post(protocol.PATH_PROGRESS, build.report(held, build.event(1, step=1))),
        caller.post(protocol.PATH_RESULT, build.result(held, Ended.PAUSED)),
        caller.put(protocol.PATH_CHECKPOINT.format(lease_token=token, step=1), b"x"),
        caller.put(protocol.PATH_ADAPTER.format(lease_token=token), b"x"),
    ]
    assert [problem(response) for response in responses] == [(401, "unknown_node_token")] * 5
    assert {response["WWW-Authenticate"] for response in responses} == {"Bearer"}
    assert not MetricPoint.objects.exists()


def test_another_nodes_lease_answers_410_and_keeps_nothing(leased):
    _, node, held = leased
    _, reply = build.joined(node.zone, name="other")
    other = NodeClient(reply.api_token)
    token = held.lease_token
    assert problem(
        other.put(protocol.PATH_CHECKPOINT.format(lease_token=token, step=1), build.safetensors())
    ) == (410, "lease_lost")
    assert problem(
        other.put(protocol.PATH_ADAPTER.format(lease_token=token), build.adapter_file())
    ) == (410, "lease_lost")
    assert problem(other.post(protocol.PATH_RESULT, build.result(held, Ended.PAUSED))) == (
        *(410, "lease_lost"),
    )
    stop = other.post(protocol.PATH_PROGRESS, build.report(held, build.event(1, step=1)))
    assert from_json(reports.ProgressReply, stop.json()).keep_running is False
    assert not Checkpoint.objects.exists()
    assert not Artifact.objects.exists()
    assert Job.objects.get().status == JobStatus.RUNNING


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[]", "object"),
        (b"{}", "lease_token is missing"),
        (b'{"lease_token": 1, "events": []}', "lease_token must be str"),
        (b'{"lease_token": "x", "events": [{"seq": NaN}]}', "events"),
        (b'{"lease_token": "x", "events": [{"seq": 1}]}', "events[0].at is missing"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_message_answers_400_with_the_sentence(leased, body, word):
    client, _, _ = leased
    response = client.post(protocol.PATH_PROGRESS, body)
    assert problem(response) == (400, "invalid_message")
    assert word in response.json()["detail"]


def test_a_message_of_megabytes_answers_413(leased, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    client, _, _ = leased
    assert problem(client.post(protocol.PATH_PROGRESS, b" " * 2000)) == (413, "message_too_large")


def test_another_method_answers_405(leased):
    client, _, held = leased
    got = client.http.get(protocol.PATH_PROGRESS, headers=client.headers)
    assert (problem(got), got["Allow"]) == ((405, "method_not_allowed"), "POST")
    path = protocol.PATH_ADAPTER.format(lease_token=held.lease_token)
    assert problem(client.post(path, b"x")) == (405, "method_not_allowed")


def test_a_damaged_upload_asks_for_it_again(leased):
    client, _, held = leased
    path = protocol.PATH_CHECKPOINT.format(lease_token=held.lease_token, step=1)
    response = client.put(path, build.safetensors(), **{"X-Content-SHA256": "0" * 64})
    assert problem(response) == (503, "file_damaged")
    assert not Checkpoint.objects.exists()


@pytest.fixture
def fetch(clock):
    """Fetches a file of a lease through ASGI, and whose lease it is."""
    zone = market.zone()
    node, reply = build.joined(zone)
    owner = builders.organisation()
    data = market.dataset(owner, zone)
    data.file.save("data", ContentFile(WHOLE), save=False)
    data.bytes = len(WHOLE)
    data.save()
    dispatch_slots(now=NOW)
    job = build.job(zone, (0, node), organisation=owner, dataset=data)
    dispatch_slots(now=NOW)
    held = build.lease(job)

    def get(name: str = "dataset", *, token: str = reply.api_token, **headers: str):
        async def whole():
            response = await AsyncClient().get(
                f"/internal/v1/leases/{held.lease_token}/blobs/{name}",
                headers={"Authorization": f"Bearer {token}"} | headers,
            )
            if not response.streaming:
                return response, response.content
            return response, b"".join([part async for part in response.streaming_content])

        return async_to_sync(whole)()

    return get


def test_a_node_fetches_a_file_of_its_lease(fetch):
    response, body = fetch()
    assert (response.status_code, body == WHOLE) == (200, True)
    assert response["Content-Length"] == str(len(WHOLE))


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [("bytes=1000000-", 1_000_000, len(WHOLE)), ("bytes=5-9", 5, 10), ("bytes=7-9999999", 7, None)],
)
def test_a_download_that_broke_off_is_continued(fetch, asked, start, stop):
    response, body = fetch(Range=asked)
    last = len(WHOLE) if stop is None else stop
    assert (response.status_code, body == WHOLE[start:last]) == (206, True)
    assert response["Content-Range"] == f"bytes {start}-{last - 1}/{len(WHOLE)}"


@pytest.mark.parametrize("asked", ["lines=1-2", "bytes=-5", "bytes=1-2,4-5", "bytes=x-"])
def test_a_range_we_do_not_serve_gives_the_whole_file(fetch, asked):
    response, body = fetch(Range=asked)
    assert (response.status_code, body == WHOLE) == (200, True)


def test_a_range_beyond_the_file_answers_416(fetch):
    response, _ = fetch(Range=f"bytes={len(WHOLE)}-")
    assert problem(response) == (416, "range_not_satisfiable")
    assert response["Content-Range"] == f"bytes */{len(WHOLE)}"


def test_a_file_is_refused_to_strangers_under_lost_leases_and_unknown_names(fetch, clock):
    assert problem(fetch(token="wrong")[0]) == (401, "unknown_node_token")
    assert problem(fetch("validation")[0]) == (404, "unknown_blob")
    assert problem(fetch("ckpt_of_another")[0]) == (404, "unknown_blob")
    clock(at(1000))
    assert problem(fetch()[0]) == (410, "lease_lost")
