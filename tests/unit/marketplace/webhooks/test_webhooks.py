"""Messages to integrators: signed, repeated with patience, and never to an inner address."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
import time_machine
from django.conf import settings
from django.db import connection
from django.test import Client
from standardwebhooks import Webhook, WebhookVerificationError

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.common import outbound
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.money import from_micros
from marketplace.jobs.models import EventKind, Job
from marketplace.jobs.services import add_job_event
from marketplace.webhooks import services
from marketplace.webhooks.delivery import (
    AT_ONCE,
    AT_ONCE_PER_ORGANISATION,
    JITTER,
    WAITS,
    delete_old_messages,
)
from marketplace.webhooks.models import MessageStatus, WebhookEndpoint, WebhookMessage
from marketplace.webhooks.outbox import (
    DELIVER,
    EVENT_TYPES,
    JOB_KINDS,
    build_message,
    store_messages,
)
from tests import builders, market_builders
from tests import job_builders as build
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@dataclass
class Receiver:
    """An integrator's server: it answers with the next of its statuses, the last one for ever."""

    url: str
    statuses: list[int] = field(default_factory=lambda: [200])
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.received.append(({name.lower(): it for name, it in self.headers.items()}, body))
            status = made.statuses.pop(0) if len(made.statuses) > 1 else made.statuses[0]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{made.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def private_addresses(settings) -> None:
    settings.WEBHOOKS_PRIVATE = True


@pytest.fixture
def owner():
    return builders.organisation()


def add_endpoint(owner, receiver, *events) -> tuple[WebhookEndpoint, str]:
    return services.create_endpoint(
        organisation=owner,
        created_by=builders.owner_of(owner),
        url=receiver.url,
        events=events or ["job.succeeded"],
        now=NOW,
    )


def deliver_due(*, now) -> int:
    return run_due_work(get_kinds()[DELIVER], clock=lambda: now)


def succeed(owner):
    zone = market_builders.zone()
    job = build.job(zone, (0, market_builders.node(zone)), organisation=owner)
    add_job_event(job=job, kind=EventKind.SUCCEEDED, message="Done.", now=NOW)
    return job


def test_receivers_verify_what_they_asked_for_and_get_nothing_else(owner, receiver):
    _, secret = add_endpoint(owner, receiver, "job.succeeded", "fine_tuning.job.succeeded")
    add_endpoint(owner, receiver, "job.failed")
    add_endpoint(builders.organisation(), receiver)
    job = succeed(owner)
    assert deliver_due(now=NOW) == 2
    told = {}
    with time_machine.travel(NOW, tick=False):
        for headers, body in receiver.received:
            told[json.loads(body)["type"]] = Webhook(secret).verify(body, headers)
            altered = body.replace(job.pk.encode(), b"ftjob-other")
            with pytest.raises(WebhookVerificationError):
                Webhook(secret).verify(altered, headers)
            event = openai.OpenAI(api_key="x", webhook_secret=secret).webhooks.unwrap(body, headers)
            assert event.data.id == job.pk  # type: ignore[union-attr]
    assert set(told) == {"job.succeeded", "fine_tuning.job.succeeded"}
    assert told["job.succeeded"]["data"]["message"] == "Done."
    assert set(WebhookMessage.objects.values_list("status", flat=True)) == {"delivered"}
    assert deliver_due(now=NOW + timedelta(days=9)) == 0


def test_while_a_secret_is_replaced_both_verify_and_later_only_the_new_one(owner, receiver):
    endpoint, earlier = add_endpoint(owner, receiver)
    secret = services.rotate_secret(endpoint=endpoint, now=NOW)
    stored = WebhookEndpoint.objects.values_list("secret", "earlier_secret").get()
    assert not any(
        each.removeprefix("whsec_") in text for each in (secret, earlier) for text in stored
    )
    for moment, good, bad in (
        (NOW, [earlier, secret], []),
        (NOW + services.OVERLAP, [secret], [earlier]),
    ):
        services.send_test(endpoint=endpoint, now=moment)
        deliver_due(now=moment)
        headers, body = receiver.received[-1]
        with time_machine.travel(moment, tick=False):
            for each in good:
                Webhook(each).verify(body, headers)
            for each in bad:
                with pytest.raises(WebhookVerificationError):
                    Webhook(each).verify(body, headers)


def test_a_message_is_tried_over_days_and_then_given_up_and_can_be_replayed(owner, receiver):
    endpoint, _ = add_endpoint(owner, receiver)
    receiver.statuses = [500]
    succeed(owner)
    now = NOW
    for wait in WAITS:
        assert deliver_due(now=now) == 1
        message = WebhookMessage.objects.get()
        assert (1 - JITTER) * wait <= message.due_at - now <= (1 + JITTER) * wait
        assert deliver_due(now=message.due_at - timedelta(seconds=1)) == 0
        now = message.due_at
    assert now - NOW > timedelta(days=2)
    assert deliver_due(now=now) == 1
    message = WebhookMessage.objects.get()
    assert (message.status, len(message.log)) == (MessageStatus.FAILED, len(WAITS) + 1)
    assert {entry["status"] for entry in message.log} == {500}
    assert deliver_due(now=now + timedelta(days=9)) == 0
    receiver.statuses = [204]
    services.replay_message(endpoint=endpoint, message_id=message.pk, now=now)
    assert deliver_due(now=now) == 1
    message.refresh_from_db()
    assert message.status == MessageStatus.DELIVERED
    assert {headers["webhook-id"] for headers, _ in receiver.received} == {message.pk}


def test_410_disables_an_endpoint_until_its_owner_enables_it(owner, receiver):
    endpoint, _ = add_endpoint(owner, receiver)
    receiver.statuses = [500, 410, 200]
    succeed(owner)
    deliver_due(now=NOW)
    succeed(owner)
    deliver_due(now=NOW)
    endpoint.refresh_from_db()
    assert (endpoint.disabled_at, endpoint.disabled_reason) == (NOW, "It answered 410 Gone.")
    assert set(WebhookMessage.objects.values_list("status", flat=True)) == {MessageStatus.FAILED}
    succeed(owner)
    assert WebhookMessage.objects.count() == 2
    with pytest.raises(services.Conflict):
        services.send_test(endpoint=endpoint, now=NOW)
    services.enable_endpoint(endpoint=endpoint)
    succeed(owner)
    assert deliver_due(now=NOW) == 1
    assert len(receiver.received) == 3


def test_an_endpoint_whose_secret_cannot_be_read_ends_alone(owner, receiver):
    broken, _ = add_endpoint(owner, receiver)
    other = builders.organisation()
    add_endpoint(other, receiver)
    WebhookEndpoint.objects.filter(pk=broken.pk).update(secret="sealed with a key that is gone")
    succeed(owner)
    succeed(other)
    assert deliver_due(now=NOW) == 2
    assert deliver_due(now=NOW + timedelta(days=9)) == 0
    broken.refresh_from_db()
    assert broken.disabled_at == NOW
    assert broken.disabled_reason.startswith("The endpoint's secret cannot be read any more.")
    by_status = dict(WebhookMessage.objects.values_list("endpoint__organisation", "status"))
    assert by_status == {owner.pk: "failed", other.pk: "delivered"}
    assert len(receiver.received) == 1
    services.rotate_secret(endpoint=broken, now=NOW)
    services.enable_endpoint(endpoint=broken)
    succeed(owner)
    assert deliver_due(now=NOW) == 1
    assert len(receiver.received) == 2


def test_an_endpoint_deleted_at_the_same_moment_undoes_no_job(owner, receiver):
    endpoint, _ = add_endpoint(owner, receiver)
    WebhookEndpoint.objects.all().delete()
    store_messages(build_message(endpoint, kind="job.failed", data={}, now=NOW))
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert deliver_due(now=NOW) == 1
    assert deliver_due(now=NOW + timedelta(days=9)) == 0
    [message] = WebhookMessage.objects.all()
    assert (message.status, message.log) == (MessageStatus.PENDING, [])
    delete_old_messages(now=NOW + timedelta(days=31))
    assert not WebhookMessage.objects.exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "https://127.0.0.1/hook",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/hook",
        "https://[::ffff:10.0.0.1]/hook",
        "https://0x7f000001/hook",
        "https://rebinding.example/hook",
    ],
)
def test_inner_addresses_are_not_asked_when_a_message_is_sent(
    owner, receiver, settings, monkeypatch, url
):
    endpoint, _ = add_endpoint(owner, receiver)
    # As if the name's owner had changed where it leads since.
    WebhookEndpoint.objects.update(url=url)
    settings.WEBHOOKS_PRIVATE = False
    resolve = outbound.socket.getaddrinfo

    def rebind(host, port, **more):
        return resolve("10.0.0.1" if host == "rebinding.example" else host, port, **more)

    monkeypatch.setattr(outbound.socket, "getaddrinfo", rebind)
    services.send_test(endpoint=endpoint, now=NOW)
    deliver_due(now=NOW)
    [entry] = WebhookMessage.objects.get().log
    assert entry["status"] is None
    assert "has no public address" in entry["error"] or "not encrypted" in entry["error"]
    assert receiver.received == []


def test_an_organisation_with_many_messages_does_not_hold_up_others(owner, receiver):
    crowded, _ = add_endpoint(owner, receiver)
    for _ in range(AT_ONCE + 1):
        services.send_test(endpoint=crowded, now=NOW)
    others, _ = add_endpoint(builders.organisation(), receiver)
    message = services.send_test(endpoint=others, now=NOW)
    assert deliver_due(now=NOW) == AT_ONCE_PER_ORGANISATION + 1
    message.refresh_from_db()
    assert message.status == MessageStatus.DELIVERED


def test_redirects_are_not_followed(owner, receiver):
    endpoint, _ = add_endpoint(owner, receiver)
    receiver.statuses = [302]
    services.send_test(endpoint=endpoint, now=NOW)
    deliver_due(now=NOW)
    [entry] = WebhookMessage.objects.get().log
    assert (entry["status"], len(receiver.received)) == (302, 1)


def test_the_api_shows_a_secret_once_and_nothing_to_strangers(owner, receiver):
    _, key = builders.api_key(owner)
    _, strangers = builders.api_key(builders.organisation())

    def send(method: str, path: str, body: Any = None, *, secret: str = key) -> Any:
        headers = {"Authorization": f"Bearer {secret}"}
        client = Client(headers=headers)
        given = {} if body is None else {"data": body, "content_type": "application/json"}
        return getattr(client, method)(f"/api/webhooks{path}", **given)

    for wrong in (
        {"url": "ftp://x", "events": ["job.failed"]},
        {"url": "http://a:b@x/", "events": ["job.failed"]},
        {"url": receiver.url, "events": []},
        {"url": receiver.url, "events": ["job.unknown"]},
        {"url": receiver.url, "events": ["job.failed"], "secret": "mine"},
    ):
        assert send("post", "", wrong).status_code == 400
    made = send("post", "", {"url": receiver.url, "events": ["job.succeeded"]})
    assert made.status_code == 201
    where = f"/{made.json()['id']}"
    assert made.json()["secret"].startswith("whsec_")
    assert "secret" not in send("get", where).json()
    succeed(owner)
    deliver_due(now=NOW)
    [delivery] = send("get", f"{where}/deliveries").json()["data"]
    assert (delivery["status"], delivery["attempts"][0]["status"]) == ("delivered", 200)
    replay = f"{where}/deliveries/{delivery['id']}/replay"
    assert send("post", replay).json()["status"] == "pending"
    for method, path in (
        ("get", where),
        ("delete", where),
        ("post", f"{where}/rotate"),
        ("post", f"{where}/enable"),
        ("post", f"{where}/test"),
        ("get", f"{where}/deliveries"),
        ("post", replay),
    ):
        assert send(method, path, secret=strangers).status_code == 404
    assert send("get", "", secret=strangers).json()["data"] == []
    assert send("delete", where).status_code == 204
    assert WebhookMessage.objects.count() == 0


def test_the_page_adds_rotates_replays_and_deletes(owner, receiver):
    client = Client()
    client.force_login(builders.owner_of(owner))
    form = {"url": receiver.url, "events": ["job.succeeded"]}
    assert b"whsec_" in client.post("/settings/webhooks", form).content
    assert b"There is" not in client.get("/settings/webhooks").content
    endpoint = WebhookEndpoint.objects.get()
    where = f"/settings/webhooks/{endpoint.pk}"
    client.post(f"{where}/test")
    deliver_due(now=NOW + timedelta(days=999))
    told = client.get(where).content
    assert b"webhook.test" in told
    assert b"whsec_" not in told
    assert b"whsec_" in client.post(f"{where}/rotate").content
    message = WebhookMessage.objects.get()
    client.post(f"{where}/deliveries/{message.pk}/replay")
    message.refresh_from_db()
    assert message.status == MessageStatus.PENDING
    stranger = Client()
    stranger.force_login(builders.owner_of(builders.organisation()))
    assert stranger.get(where).status_code == 404
    client.post(f"{where}/delete")
    assert not WebhookEndpoint.objects.exists()


def test_a_refused_bid_and_an_opened_job_reach_their_owner_and_nobody_else(owner, receiver):
    add_endpoint(owner, receiver, "bid.refused", "job.opened")
    other = builders.organisation(usd="10")
    add_endpoint(other, receiver, "bid.refused", "job.opened")
    rich = builders.organisation(usd="10")
    add_endpoint(rich, receiver, "bid.refused")
    zone = market_builders.zone()
    market_builders.node(zone)
    won = market_builders.bid(other, zone, price_micros=5_000_000, epochs=3)
    lost = market_builders.bid(rich, zone, price_micros=123_457, epochs=3)
    decide_pending_bids(zone=zone, now=NOW)
    messages = {message.type: message for message in WebhookMessage.objects.all()}
    assert set(messages) == {"job.opened", "bid.refused"}
    assert messages["job.opened"].endpoint.organisation_id == other.pk
    opened = json.loads(messages["job.opened"].body)["data"]
    job = Job.objects.get(bid_id=won.pk)
    assert (opened["id"], opened["kind"], opened["status"]) == (job.pk, "opened", "queued")
    assert opened["data"] == {"cells": job.cells}
    assert messages["bid.refused"].endpoint.organisation_id == rich.pk
    refused = json.loads(messages["bid.refused"].body)["data"]
    lost.refresh_from_db()
    assert refused["id"] == lost.pk
    assert refused["reason"] == lost.refusal != ""
    assert refused["posted_price"] == f"{from_micros(lost.winning_price_micros):f}"
    assert "123457" not in messages["bid.refused"].body.replace(".", "")


def test_the_guide_names_every_type():
    guide = (Path(settings.BASE_DIR) / "docs" / "guides" / "webhooks.md").read_text()
    table = guide.partition("| Type | When |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`((?:\w+\.)+\w+)`", table)) == sorted(EVENT_TYPES)


def test_every_kind_of_event_of_a_job_is_a_type():
    assert set(JOB_KINDS) == set(EventKind.values)
