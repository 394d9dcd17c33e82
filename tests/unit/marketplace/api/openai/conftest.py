"""The unmodified ``openai`` client, a web server for it, and a node that answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from django.core.cache import cache

from marketplace.common import clock
from tests import builders
from tests import job_builders as build
from tests.unit.marketplace.api.web_server import serve
from workers.node import answerer as answerers
from workers.node.answerer import Answerer
from workers.node.blob_cache import BlobCache
from workers.node.market_client import MarketClient
from workers.protocol.generation import Question, Written

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def web(transactional_db: None) -> Iterator[str]:
    cache.clear()
    with serve() as url:
        yield url


@pytest.fixture
def connect(web: str) -> Iterator[Callable[..., openai.OpenAI]]:
    """Makes a client with a key of an organisation's."""
    clients: list[openai.OpenAI] = []

    def make(organisation, *, scopes=None, **key) -> openai.OpenAI:
        _, secret = builders.api_key(organisation, scopes=scopes, **key)
        clients.append(openai.OpenAI(base_url=f"{web}/v1", api_key=secret, max_retries=1))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def owner():
    return builders.organisation(name="Acme", usd="100")


@pytest.fixture
def client(connect, owner) -> openai.OpenAI:
    return connect(owner)


class ScriptedRuntime:
    """A runtime that writes what the test says, and remembers what it was asked."""

    def __init__(self):
        self.asked: list[tuple[Question, bytes | None]] = []
        self.ended: list[str] = []
        self.was_ended = threading.Event()
        self.script: list[Written] = [Written("", "Hi", answer_tokens=1)]
        self.script.append(Written("", " there", answer_tokens=3, finish="stop"))

    def answer(
        self, question: Question, adapter: Path | None, tell: Callable[[Written], None]
    ) -> None:
        self.asked.append((question, adapter and adapter.read_bytes()))
        for item in self.script:
            tell(replace(item, token=question.token, prompt_tokens=1))

    def end_answer(self, token: str) -> None:
        self.ended.append(token)
        self.was_ended.set()


@pytest.fixture
def node(zone):
    made, reply = build.joined(zone, now=clock.now())
    # About 0.1 cents for a token.
    type(made).objects.filter(pk=made.pk).update(ask_micros=2_000, compute_capacity=1.0)
    made.refresh_from_db()
    made.api_token = reply.api_token
    return made


@pytest.fixture
def runtime(web, node, tmp_path, monkeypatch):
    """A node that answers over HTTPS, but for the model."""
    # The server ends once all requests are answered.
    monkeypatch.setattr(answerers, "WAIT_S", 0.3)
    runtime = ScriptedRuntime()
    stopping = threading.Event()
    client = MarketClient(web, token=node.api_token, stopping=stopping)
    (tmp_path / "cache").mkdir()
    cache = BlobCache(tmp_path / "cache", client)
    answerer = Answerer(node_id=node.pk, runtime=runtime, cache=cache, client=client)
    answerer.start()
    yield runtime
    answerer.close()
    stopping.set()
    client.close()


@pytest.fixture
def ask(client, zone, runtime):
    def chat(**changed):
        return client.chat.completions.create(
            **({"model": zone.name, "messages": HELLO, "max_tokens": 10} | changed)
        )

    return chat
