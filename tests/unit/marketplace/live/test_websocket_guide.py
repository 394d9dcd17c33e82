"""The program of the guide follows a job through a connection that breaks, and misses nothing."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from channels.layers import channel_layers
from django.test import Client
from websockets.exceptions import ConnectionClosed, InvalidStatus

from marketplace.common import clock
from marketplace.config.routes import list_sockets
from marketplace.jobs.models import EventKind, Job, JobStatus
from marketplace.jobs.services import add_job_event
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.conftest import ROOT
from tests.unit.marketplace.api.web_server import serve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

GUIDE = (ROOT / "docs" / "guides" / "websockets.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def layer() -> None:
    # Its connections belong to the event loop that made them.
    channel_layers.backends.clear()


@pytest.fixture
def job() -> Job:
    zone = market.zone()
    return build.job(zone, (0, market.node(zone)))


class Relay:
    """A port in front of another, whose connections can be broken."""

    def __init__(self, listening: socket.socket, to: int) -> None:
        self.listening, self.to = listening, to
        self.open: list[socket.socket] = []

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            self.open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while piece := one.recv(65536):
                other.sendall(piece)
        except OSError:
            pass
        finally:
            self.close(one, other)

    def cut(self) -> None:
        self.close(*self.open)
        self.open.clear()

    def close(self, *which: socket.socket) -> None:
        for one in which:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def relayed(url: str) -> Iterator[tuple[str, Relay]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        relay = Relay(listening, int(url.rpartition(":")[2]))
        thread = threading.Thread(target=relay.accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", relay
        relay.cut()
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def note(job: Job, text: str) -> None:
    add_job_event(job=job, kind=EventKind.SETTLED, message=text, now=clock.now())


def test_the_guides_program_goes_on_after_a_break_and_ends_with_the_job(job: Job) -> None:
    _, secret = builders.api_key(job.organisation)
    [program] = BLOCK.findall(GUIDE)
    # What a web process imports with its first requests takes long on a busy machine.
    Client(headers={"Authorization": f"Bearer {secret}"}).get("/api/jobs")
    with serve() as url, relayed(url) as (through, relay):
        running = subprocess.Popen(
            [sys.executable, "-u", "-c", program],
            env={"FINETENDER_URL": through, "FINETENDER_API_KEY": secret},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert running.stdout is not None
            lines = iter(running.stdout.readline, "")
            assert next(lines).split() == ["snapshot", "1", "queued"]
            note(job, "one")
            assert next(lines).split() == ["event", "2", "queued"]
            relay.cut()
            note(job, "missed")
            # Connected again, its snapshot holds what was missed.
            assert next(lines).split() == ["snapshot", "3", "queued"]
            Job.objects.filter(pk=job.pk).update(
                status=JobStatus.SUCCEEDED, finished_at=clock.now()
            )
            note(Job.objects.get(pk=job.pk), "done")
            assert next(lines).split() == ["event", "4", "succeeded"]
            assert next(lines).split() == ["snapshot", job.zone.name, "0", "0"]
            assert running.wait(30) == 0
        finally:
            running.kill()
            _, told = running.communicate()
    assert told == ""


def test_the_guides_program_ends_where_it_may_not_follow(job: Job) -> None:
    [program] = BLOCK.findall(GUIDE)
    names: dict[str, Any] = {}
    _, secret = builders.api_key(builders.organisation())
    with serve() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINETENDER_URL", url)
        patch.setenv("FINETENDER_API_KEY", secret)
        head = program[: program.index("jobs = httpx")]
        exec(head, names)  # the guide's own text
        follow: Callable[..., Iterator[Any]] = names["messages"]
        bearer = {"Authorization": f"Bearer {secret}"}
        for path, headers in (
            (f"/ws/jobs/{job.pk}/", bearer),
            (f"/ws/jobs/{job.pk}/", {"Authorization": "Bearer ft_unknown_key"}),
            ("/ws/market/nowhere/", bearer),
        ):
            with pytest.raises(ConnectionClosed) as closed:
                next(follow(path, headers))
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4404, path
        market_path = f"/ws/market/{job.zone.name}/"
        assert next(follow(market_path, bearer))["type"] == "snapshot"
        # Not asked again and again: no key and no page of ours, a page of another site, no channel.
        for path, headers in (
            (market_path, None),
            (market_path, {"Origin": "https://elsewhere.example"}),
            ("/ws/elsewhere", bearer),
        ):
            with pytest.raises(InvalidStatus) as refused:
                next(follow(path, headers))
            assert refused.value.response.status_code == 403, path


def test_the_guide_names_every_channel_and_every_type_of_message() -> None:
    named = set(re.findall(r"\| `(/ws/[^`]*)`", GUIDE))
    ours = {
        "/" + re.sub(r"\(\?P<(\w+?)_\w+>.*?\)", lambda part: part[1].upper(), route.path)
        for route in list_sockets()
    }
    assert named == ours
    told = set(re.findall(r"^\| `([a-z.]+)` \|", GUIDE, re.MULTILINE))
    assert told - {"type"} == {"snapshot", "event", "progress", "market.changed", "pong"}
