"""Bodies that are too large, or nobody's, are refused before they are stored."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from asgiref.sync import async_to_sync

from marketplace.api.internal.body_limit import FORM_BYTES, BodyLimitMiddleware
from tests import job_builders as build
from tests import market_builders as market

pytestmark = pytest.mark.django_db

LEASE = "/internal/v1/leases/x/adapter"


class Application:
    """Reads a body as Django does: whole, and silent when the caller goes."""

    def __init__(self) -> None:
        self.read = 0
        self.called = False

    async def __call__(self, scope, receive, send) -> None:
        self.called = True
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            self.read += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


def call(
    path: str, parts: Sequence[int], *, method: str = "POST", **headers: str
) -> tuple[int, str, Application]:
    """Status, code of the problem and the application, for a body in parts of these sizes."""
    application = Application()
    waiting = [
        {"type": "http.request", "body": bytes(size), "more_body": number < len(parts)}
        for number, size in enumerate(parts, start=1)
    ]
    sent = []

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
    }
    async_to_sync(BodyLimitMiddleware(application))(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    code = "" if body == b"ok" else json.loads(body)["code"]
    return sent[0]["status"], code, application


def test_a_body_within_the_limit_goes_through(settings):
    settings.UPLOAD_BYTES_MAX = 1000
    status, _, application = call("/api/datasets", [1000, FORM_BYTES])
    assert (status, application.read) == (200, 1000 + FORM_BYTES)


def test_a_body_that_says_it_is_too_large_is_not_read(settings):
    settings.UPLOAD_BYTES_MAX = 1000
    told = str(1001 + FORM_BYTES)
    status, code, application = call("/api/datasets", [10], content_length=told)
    assert (status, code, application.called) == (413, "file_too_large", False)


def test_a_body_that_grows_too_large_is_cut_off(settings):
    settings.UPLOAD_BYTES_MAX = 1000
    status, code, application = call("/api/datasets", [FORM_BYTES, 1000, 1, 5000])
    assert (status, code) == (413, "file_too_large")
    assert application.read == FORM_BYTES + 1000


@pytest.mark.parametrize("told", ["-1", "many", "1e9"])
def test_a_length_that_is_none_is_refused(told):
    assert call("/api/datasets", [1], content_length=told)[:2] == (413, "file_too_large")


@pytest.mark.django_db(transaction=True)
def test_a_nodes_upload_needs_a_nodes_token_before_its_body(settings):
    settings.UPLOAD_BYTES_MAX = 10
    settings.CHECKPOINT_BYTES_MAX = 5 * FORM_BYTES
    _, reply = build.joined(market.zone())
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"}):
        status, code, application = call(LEASE, [1], method="PUT", **headers)
        assert (status, code, application.called) == (401, "unknown_node_token", False)
    mine = {"authorization": f"Bearer {reply.api_token}"}
    status, _, application = call(LEASE, [5 * FORM_BYTES], method="PUT", **mine)
    assert (status, application.read) == (200, 5 * FORM_BYTES)
    status, code, _ = call(LEASE, [5 * FORM_BYTES, 1], method="PUT", **mine)
    assert (status, code) == (413, "file_too_large")


def test_reading_needs_no_gate():
    status, _, application = call(LEASE, [0], method="GET")
    assert (status, application.called) == (200, True)
