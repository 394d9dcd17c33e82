"""Bodies that are too large, or nobody's, are refused before they are stored."""

from __future__ import annotations

import asyncio
import errno
import json
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from marketplace.accounts.models import ApiKey
from marketplace.api.internal import body_limit
from marketplace.api.internal.body_limit import (
    ANONYMOUS_BYTES,
    FORM_BYTES,
    BodyLimitMiddleware,
)
from marketplace.exports.models import Export, ExportForm
from marketplace.jobs.models import ErrandKind, ErrandState
from marketplace.jobs.services import cancel_parted_upload, dispatch_slots, open_parted_upload
from tests import builders
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


def call(path: str, parts: Sequence[int], **asked: Any) -> tuple[int, str, Application]:
    """Status, code of the problem and the application, for a body in parts of these sizes."""
    return async_to_sync(exchange)(path, parts, **asked)


async def exchange(
    path: str,
    parts: Sequence[int],
    *,
    method: str = "POST",
    stalls: bool = False,
    application: Application | None = None,
    **headers: str,
) -> tuple[int, str, Application]:
    """As ``call``. With ``stalls`` there is more of the body that never comes."""
    application = application or Application()
    waiting = [
        {"type": "http.request", "body": bytes(size), "more_body": stalls or number < len(parts)}
        for number, size in enumerate(parts, start=1)
    ]
    sent = []

    async def receive():
        return waiting.pop(0) if waiting else await asyncio.Future()

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
    await BodyLimitMiddleware(application)(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    said = {"code": ""} if body == b"ok" else json.loads(body)
    code = said.get("error", said)["code"]
    return sent[0]["status"], code, application


def lease():
    """The header of a node, and where it may store what it does under its lease."""
    zone = market.zone()
    node, reply = build.joined(zone)
    job = build.job(zone, (0, node))
    dispatch_slots(now=builders.NOW)
    held = build.lease(job)
    path = f"/internal/v1/leases/{held.lease_token}/adapter"
    return {"authorization": f"Bearer {reply.api_token}"}, path


def ask_for_export():
    """An export that a node was asked for, and that node's header."""
    zone = market.zone()
    node, reply = build.joined(zone)
    job = build.job(zone, (0, node))
    dispatch_slots(now=builders.NOW)
    export = Export.objects.create(
        kind=ErrandKind.EXPORT,
        organisation_id=job.organisation_id,
        zone=zone,
        job=job,
        artifact=market.artifact(job),
        form=ExportForm.MERGED,
        node=node,
        token="asked",
        price_micros=1,
        created_at=builders.NOW,
        state=ErrandState.ASKED,
        expires_at=builders.NOW,
    )
    return export, {"authorization": f"Bearer {reply.api_token}"}


@pytest.fixture
def key():
    """The header of a program that is known."""
    _, secret = builders.api_key(builders.organisation())
    return {"authorization": f"Bearer {secret}"}


def test_a_body_within_the_limit_goes_through(settings, key):
    settings.UPLOAD_BYTES_MAX = 1000
    status, _, application = call("/api/datasets", [1000, FORM_BYTES], **key)
    assert (status, application.read) == (200, 1000 + FORM_BYTES)


def test_a_body_that_says_it_is_too_large_is_not_read(settings, key):
    settings.UPLOAD_BYTES_MAX = 1000
    told = str(1001 + FORM_BYTES)
    status, code, application = call("/api/datasets", [10], content_length=told, **key)
    assert (status, code, application.called) == (413, "file_too_large", False)


def test_a_body_that_grows_too_large_is_cut_off(settings, key):
    settings.UPLOAD_BYTES_MAX = 1000
    status, code, application = call("/api/datasets", [FORM_BYTES, 1000, 1, 5000], **key)
    assert (status, code) == (413, "file_too_large")
    assert application.read == FORM_BYTES + 1000


@pytest.mark.parametrize("told", ["-1", "many", "1e9"])
def test_a_length_that_is_none_is_refused(told, key):
    refused = call("/api/datasets", [1], content_length=told, **key)
    assert refused[:2] == (413, "file_too_large")


@pytest.mark.parametrize("path", ["/accounts/login/", "/api/datasets", "/internal/v1/join", "/"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer ft_unknown_key"},
        {"authorization": "Basic x"},
        {"cookie": "sessionid=unknown"},
    ],
)
def test_a_stranger_sends_no_more_than_a_form(path, headers):
    is_program = path.startswith("/api/")
    refused = (401, "invalid_api_key") if is_program else (413, "file_too_large")
    assert call(path, [ANONYMOUS_BYTES], **headers)[0] == 200
    status, code, application = call(path, [ANONYMOUS_BYTES, 1, 99], **headers)
    assert (status, code, application.read) == (*refused, ANONYMOUS_BYTES)
    told = str(ANONYMOUS_BYTES + 1)
    status, code, application = call(path, [1], content_length=told, **headers)
    assert (status, code, application.called) == (*refused, False)


def test_only_uploads_may_be_as_long_as_a_data_set(settings, key):
    most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE + FORM_BYTES
    assert call("/api/bids:batch", [most], **key)[0] == 200
    assert call("/api/bids:batch", [most, 1], **key)[:2] == (413, "file_too_large")


def test_a_person_who_signed_in_may_upload(client):
    client.force_login(builders.user())
    cookie = f"sessionid={client.cookies['sessionid'].value}"
    assert call("/datasets", [ANONYMOUS_BYTES, 1], cookie=cookie)[0] == 200
    client.logout()
    assert call("/datasets", [ANONYMOUS_BYTES, 1], cookie=cookie)[0] == 413


@pytest.mark.django_db(transaction=True)
def test_a_part_is_as_long_as_its_upload_and_needs_an_open_one(monkeypatch):
    monkeypatch.setattr("marketplace.common.clock.now", lambda: builders.NOW)
    owner = builders.organisation()
    mine = {"authorization": f"Bearer {builders.api_key(owner)[1]}"}
    terms = {"organisation": owner, "created_by": None, "name": "a", "now": builders.NOW}
    upload = open_parted_upload(size=3 * FORM_BYTES, **terms)
    path = f"/v1/uploads/{upload.pk}/parts"
    assert call(path, [4 * FORM_BYTES], **mine)[0] == 200
    assert call(path, [4 * FORM_BYTES, 1], **mine)[:2] == (413, "file_too_large")
    cancel_parted_upload(upload=upload, now=builders.NOW)
    for ended in (path, "/v1/uploads/made-up/parts"):
        assert call(ended, [ANONYMOUS_BYTES + 1], **mine)[:2] == (409, "upload_not_pending")


@pytest.mark.django_db(transaction=True)
def test_a_nodes_upload_needs_a_nodes_token_before_its_body(settings):
    settings.UPLOAD_BYTES_MAX = 10
    settings.CHECKPOINT_BYTES_MAX = 5 * FORM_BYTES
    mine, held = lease()
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"}):
        status, code, application = call(held, [1], method="PUT", **headers)
        assert (status, code, application.called) == (401, "unknown_node_token", False)
    status, _, application = call(held, [5 * FORM_BYTES], method="PUT", **mine)
    assert (status, application.read) == (200, 5 * FORM_BYTES)
    status, code, _ = call(held, [5 * FORM_BYTES, 1], method="PUT", **mine)
    assert (status, code) == (413, "file_too_large")


@pytest.mark.django_db(transaction=True)
def test_a_node_sends_no_file_that_it_was_not_asked_for(settings, monkeypatch):
    settings.EXPORT_BYTES_MAX = 5 * FORM_BYTES
    monkeypatch.setattr("marketplace.common.clock.now", lambda: builders.NOW)
    mine, _ = lease()
    _, of_another = lease()
    for path in (LEASE, of_another, "/internal/v1/errands/made-up/file", "/internal/v1/leases/"):
        status, code, application = call(path, [ANONYMOUS_BYTES + 1], method="PUT", **mine)
        assert (status, code) == (413, "file_too_large"), path
        assert application.read <= ANONYMOUS_BYTES
    export, of_maker = ask_for_export()
    path = f"/internal/v1/errands/{export.token}/file"
    status, _, application = call(path, [5 * FORM_BYTES], method="PUT", **of_maker)
    assert (status, application.read) == (200, 5 * FORM_BYTES)
    assert call(path, [ANONYMOUS_BYTES + 1], method="PUT", **mine)[0] == 413


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_needs_no_key_and_brings_no_long_body(method):
    status, _, application = call(LEASE, [0], method=method)
    assert (status, application.called) == (200, True)
    # Django stores the body of such a request as that of any other.
    status, code, application = call("/api/zones", [ANONYMOUS_BYTES, 1, 99], method=method)
    assert (status, code) == (413, "file_too_large")
    assert application.read == ANONYMOUS_BYTES


def test_a_body_that_comes_too_slowly_is_given_up(monkeypatch, key):
    monkeypatch.setattr(body_limit, "BODY_WITHIN_S", 0.0)
    monkeypatch.setattr(body_limit, "BODY_BYTES_PER_S", 1e9)
    assert call("/api/datasets", [20_000, 20_000], **key)[0] == 200
    status, code, application = call("/api/datasets", [20_000, 100], stalls=True, **key)
    assert (status, code, application.read) == (408, "body_too_slow", 20_100)


def test_one_sender_has_a_few_files_under_way_at_once(monkeypatch, key):
    monkeypatch.setattr(body_limit, "FILES_AT_ONCE", 1)
    _, secret = builders.api_key(builders.organisation())
    another = {"authorization": f"Bearer {secret}"}
    meanwhile = []

    class Slow(Application):
        async def __call__(self, scope, receive, send) -> None:
            for sender in (key, another):
                meanwhile.append(await exchange("/api/datasets", [10], **sender))
            await super().__call__(scope, receive, send)

    assert call("/api/datasets", [10], application=Slow(), **key)[0] == 200
    mine, others = meanwhile
    assert (*mine[:2], mine[2].called) == (429, "too_many_uploads", False)
    assert others[0] == 200
    assert call("/api/datasets", [10], **key)[0] == 200
    assert not body_limit._open_files


def test_a_frozen_key_is_nobodys_and_keeps_no_other_of_its_owner_from_sending():
    made, secret = builders.api_key(builders.organisation())
    ApiKey.objects.filter(pk=made.pk).update(frozen_at=builders.NOW)
    stolen = {"authorization": f"Bearer {secret}"}
    assert call("/api/datasets", [ANONYMOUS_BYTES, 1], **stolen)[0] == 401
    assert call("/api/datasets", [ANONYMOUS_BYTES], **stolen)[0] == 200


def test_keys_of_one_owner_and_bids_without_a_file_are_not_counted_together(monkeypatch):
    monkeypatch.setattr(body_limit, "FILES_AT_ONCE", 1)
    owner = builders.organisation()
    mine, other = ({"authorization": f"Bearer {builders.api_key(owner)[1]}"} for _ in range(2))
    meanwhile = []

    class Slow(Application):
        async def __call__(self, scope, receive, send) -> None:
            meanwhile.append(await exchange("/api/datasets", [10], **other))
            meanwhile.append(await exchange("/api/bids", [ANONYMOUS_BYTES + 1], **mine))
            await super().__call__(scope, receive, send)

    assert call("/api/datasets", [10], application=Slow(), **mine)[0] == 200
    assert [status for status, *_ in meanwhile] == [200, 200]


def test_a_disk_that_is_nearly_full_takes_no_file(monkeypatch, key):
    free = [body_limit.SPARE_BYTES, body_limit.SPARE_BYTES - 1]
    left = namedtuple("usage", "free")
    monkeypatch.setattr(body_limit.shutil, "disk_usage", lambda _: left(free.pop(0)))
    monkeypatch.setattr(body_limit, "LOOK_BYTES", 1000)
    status, code, application = call("/api/datasets", [999, 1, 500], **key)
    assert (status, code, application.read) == (503, "disk_full", 999)
    free.append(0)
    status, code, application = call("/api/datasets", [1], **key)
    assert (status, code, application.called) == (503, "disk_full", False)
    # What is no file goes on.
    assert call("/api/bids:batch", [ANONYMOUS_BYTES + 1], **key)[0] == 200
    assert not free


def test_a_disk_that_fills_up_under_a_body_is_said(key):
    class Full(Application):
        """As Django where it cannot write the body down."""

        number = errno.ENOSPC

        async def __call__(self, scope, receive, send) -> None:
            await receive()
            raise OSError(self.number, "of the spool")

    assert call("/api/bids:batch", [10], application=Full(), **key)[:2] == (503, "disk_full")
    Full.number = errno.EIO
    with pytest.raises(OSError, match="of the spool"):
        call("/api/bids:batch", [10], application=Full(), **key)
