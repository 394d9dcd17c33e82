"""Websockets on the real channel layer: a snapshot first, then order, and nothing for strangers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.layers import channel_layers, get_channel_layer
from django.contrib.auth.models import AnonymousUser
from django.db import OperationalError
from django.test import Client

from marketplace.jobs.models import EventKind, Job
from marketplace.jobs.services import add_job_event
from marketplace.live import consumers
from marketplace.live.routing import websocket_router
from tests import builders, market_builders
from tests import job_builders as build
from tests.builders import NOW

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds a message may take on a busy machine.
WITHIN_S = 10


@pytest.fixture
def job() -> Job:
    zone = market_builders.zone()
    return build.job(zone, (0, market_builders.node(zone)))


class Browser:
    """One websocket, spoken as ASGI does; channels' own helper wants a server we do not use."""

    def __init__(self, path: str, user: Any, **more: Any) -> None:
        scope = {"type": "websocket", "path": path, "headers": [], "user": user} | more
        self.application = ApplicationCommunicator(websocket_router, scope)

    async def send(self, text: str) -> None:
        await self.application.send_input({"type": "websocket.receive", "text": text})

    async def ask(self, kind: str) -> None:
        await self.send(json.dumps({"type": kind}))

    async def output(self) -> dict[str, Any]:
        return await self.application.receive_output(timeout=WITHIN_S)

    async def heard(self) -> dict[str, Any]:
        told = await self.output()
        assert told["type"] == "websocket.send"
        return json.loads(told["text"])


@asynccontextmanager
async def followed(path: str, user: Any, **more: Any) -> AsyncIterator[Browser]:
    # The layer's connections belong to the event loop that made them.
    channel_layers.backends.clear()
    browser = Browser(path, user, **more)
    await browser.application.send_input({"type": "websocket.connect"})
    assert (await browser.output())["type"] == "websocket.accept"
    yield browser
    await browser.application.send_input({"type": "websocket.disconnect", "code": 1000})
    await browser.application.wait(timeout=WITHIN_S)


def note(job: Job, text: str) -> None:
    add_job_event(job=job, kind=EventKind.SETTLED, message=text, now=NOW)


def test_the_owner_gets_a_snapshot_and_then_events_in_order(job: Job) -> None:
    owner = builders.owner_of(job.organisation)

    async def story() -> None:
        async with followed(f"/ws/jobs/{job.pk}/", owner) as browser:
            first = await browser.heard()
            assert (first["type"], first["job_id"]) == ("snapshot", job.pk)
            for text in ("one", "two"):
                await sync_to_async(note)(job, text)
            told = [await browser.heard(), await browser.heard()]
            assert [event["message"] for event in told] == ["one", "two"]
            assert [event["seq"] for event in told] == [first["seq"] + 1, first["seq"] + 2]

    async_to_sync(story)()


def test_a_program_follows_with_a_key_that_may_read_jobs_of_its_own_organisation(job: Job) -> None:
    _, secret = builders.api_key(job.organisation)
    _, without_scope = builders.api_key(job.organisation, scopes=["bids:read"])
    _, strangers = builders.api_key(builders.organisation())

    async def first_answer(authorization: str) -> dict[str, Any]:
        headers = [(b"authorization", authorization.encode())]
        async with followed(f"/ws/jobs/{job.pk}/", AnonymousUser(), headers=headers) as program:
            return await program.output()

    async def story() -> None:
        told = await first_answer(f"Bearer {secret}")
        assert json.loads(told["text"])["job_id"] == job.pk
        for refused, code in (
            (f"Basic {secret}", 4404),
            (f"Bearer {without_scope}", 4403),
            (f"Bearer {strangers}", 4404),
        ):
            told = await first_answer(refused)
            assert (told["type"], told["code"]) == ("websocket.close", code)

    async_to_sync(story)()


def test_an_event_the_snapshot_holds_is_not_sent_again(job: Job) -> None:
    owner = builders.owner_of(job.organisation)

    async def story() -> None:
        async with followed(f"/ws/jobs/{job.pk}/", owner) as browser:
            first = await browser.heard()
            layer = get_channel_layer()
            assert layer is not None
            for seq in (first["seq"], first["seq"] + 1):
                event = {"type": "event", "seq": seq}
                message = {"type": "stream.event", "stream": f"job.{job.pk}", "event": event}
                await layer.group_send(f"job.{job.pk}", message)
            assert (await browser.heard())["seq"] == first["seq"] + 1

    async_to_sync(story)()


def test_a_ping_tells_whether_something_was_missed(job: Job) -> None:
    owner = builders.owner_of(job.organisation)

    async def story() -> None:
        async with followed(f"/ws/jobs/{job.pk}/", owner) as browser:
            first = await browser.heard()
            await browser.ask("ping")
            assert await browser.heard() == {"type": "pong", "seq": first["seq"]}
            # Redis lost the message of this one.
            await Job.objects.filter(pk=job.pk).aupdate(seq=first["seq"] + 1)
            await browser.ask("ping")
            again = await browser.heard()
            assert (again["type"], again["seq"]) == ("snapshot", first["seq"] + 1)

    async_to_sync(story)()


def test_a_browser_with_a_gap_may_ask_for_a_snapshot_and_nonsense_is_passed_over(job: Job) -> None:
    owner = builders.owner_of(job.organisation)

    async def story() -> None:
        async with followed(f"/ws/jobs/{job.pk}/", owner) as browser:
            first = await browser.heard()
            for nonsense in ("{", "[]", '"ping"', "null", '{"type": 3}'):
                await browser.send(nonsense)
            await browser.ask("snapshot")
            assert await browser.heard() == first

    async_to_sync(story)()


@pytest.mark.parametrize("who", ["nobody", "a stranger"])
def test_a_job_is_closed_to_others(job: Job, who: str) -> None:
    user = AnonymousUser() if who == "nobody" else builders.user()

    async def story() -> None:
        async with followed(f"/ws/jobs/{job.pk}/", user) as browser:
            closed = await browser.output()
            assert closed["type"] == "websocket.close"
            assert closed["code"] == 4404

    async_to_sync(story)()


def test_the_market_is_open_to_everybody(job: Job) -> None:
    async def story() -> None:
        async with followed(f"/ws/market/{job.zone.name}/", AnonymousUser()) as browser:
            first = await browser.heard()
            assert (first["type"], first["zone"]) == ("snapshot", job.zone.name)
            assert first["decisions"] == []

    async_to_sync(story)()


def test_polling_gives_the_same_snapshot(job: Job, client: Client) -> None:
    owner = builders.owner_of(job.organisation)
    client.force_login(owner)

    async def story() -> dict[str, Any]:
        async with followed(f"/ws/jobs/{job.pk}/", owner) as browser:
            return await browser.heard()

    polled = client.get(f"/live/jobs/{job.pk}", headers={"accept": "application/json"})
    assert polled.json() == async_to_sync(story)()
    assert "no-store" in polled["Cache-Control"]


def test_polling_refuses_others_in_json(job: Job, client: Client) -> None:
    client.force_login(builders.user())
    reply = client.get(f"/live/jobs/{job.pk}", headers={"accept": "application/json"})
    assert reply.status_code == 404
    assert reply.json()["code"] == "unknown_job"


def signed_in(user: Any) -> tuple[Client, dict[str, Any]]:
    """A browser, and what a websocket opened by it knows of its session."""
    browser = Client()
    browser.force_login(user)
    return browser, {"session": browser.session}


def test_after_signing_out_nothing_more_is_sent(job: Job, monkeypatch) -> None:
    monkeypatch.setattr(consumers, "CHECK_EVERY_S", 0.0)
    owner = builders.owner_of(job.organisation)
    browser, scope = signed_in(owner)

    async def story() -> None:
        async with followed(f"/ws/jobs/{job.pk}/", owner, **scope) as socket:
            assert (await socket.heard())["type"] == "snapshot"
            await sync_to_async(note)(job, "while signed in")
            assert (await socket.heard())["message"] == "while signed in"
            await sync_to_async(browser.logout)()
            await sync_to_async(note)(job, "secret")
            closed = await socket.output()
            assert (closed["type"], closed["code"]) == ("websocket.close", 4404)

    async_to_sync(story)()


@pytest.mark.parametrize("path", ["/ws/jobs/x", "/ws/", "/", "/ws/market/%00/", "/accounts/login/"])
def test_an_address_that_is_none_is_closed_and_no_fault_of_ours(path: str) -> None:
    async def story() -> None:
        browser = Browser(path, AnonymousUser())
        await browser.application.send_input({"type": "websocket.connect"})
        assert await browser.output() == {"type": "websocket.close", "code": 4404}

    async_to_sync(story)()


def test_after_a_membership_ends_nothing_more_is_sent(job: Job) -> None:
    owner = builders.owner_of(job.organisation)

    async def story() -> None:
        async with followed(f"/ws/jobs/{job.pk}/", owner) as socket:
            assert (await socket.heard())["type"] == "snapshot"
            await sync_to_async(job.organisation.memberships.all().delete)()
            await socket.ask("snapshot")
            closed = await socket.output()
            assert (closed["type"], closed["code"]) == ("websocket.close", 4404)

    async_to_sync(story)()


def test_snapshots_can_be_asked_for_a_few_times_at_once_and_then_in_turn(monkeypatch) -> None:
    waited: list[float] = []

    async def note_wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(consumers.asyncio, "sleep", note_wait)

    async def story() -> None:
        consumer = consumers.MarketConsumer()
        for _ in range(consumers.SNAPSHOTS_AT_ONCE + 3):
            await consumer._wait_for_turn()

    async_to_sync(story)()
    assert [round(seconds) for seconds in waited] == [1, 2, 3]


@pytest.mark.parametrize(
    "nonsense", [{"bytes": b"x"}, {"text": "[" * 100_000}, {"text": "{"}, {"text": "[]"}]
)
def test_nonsense_is_left_unanswered(job: Job, nonsense: dict[str, Any]) -> None:
    async def story() -> None:
        async with followed(f"/ws/market/{job.zone.name}/", AnonymousUser()) as socket:
            await socket.heard()
            await socket.application.send_input({"type": "websocket.receive"} | nonsense)
            await socket.ask("ping")
            assert (await socket.heard())["type"] == "pong"

    async_to_sync(story)()


def test_a_websocket_that_fails_leaves_its_group_and_gives_its_place_back(
    job: Job, monkeypatch
) -> None:
    async def story() -> None:
        async with followed(f"/ws/market/{job.zone.name}/", AnonymousUser()) as socket:
            await socket.heard()
            groups.append(get_channel_layer()._get_layer().groups)
            assert [len(members) for members in groups[0].values()] == [1]
            assert consumers._open_sockets.total() == 1
            monkeypatch.setattr(consumers.StreamConsumer, "send_snapshot", fail)
            await socket.ask("snapshot")

    async def fail(_: Any) -> None:
        raise OperationalError("the connection is lost")

    groups: list[dict[str, set[str]]] = []
    with pytest.raises(OperationalError):
        async_to_sync(story)()
    assert groups == [{}]
    assert consumers._open_sockets.total() == 0


def test_one_address_holds_so_many_websockets_and_no_more(job: Job, monkeypatch) -> None:
    monkeypatch.setattr(consumers, "SOCKETS_PER_ADDRESS", 1)
    address = f"/ws/market/{job.zone.name}/"

    async def refused() -> None:
        other = Browser(address, AnonymousUser())
        await other.application.send_input({"type": "websocket.connect"})
        closed = await other.output()
        assert (closed["type"], closed["code"]) == ("websocket.close", 4429)

    async def story() -> None:
        async with followed(address, AnonymousUser()) as socket:
            await socket.heard()
            await refused()
        async with followed(address, AnonymousUser()) as socket:
            assert (await socket.heard())["type"] == "snapshot"

    async_to_sync(story)()
