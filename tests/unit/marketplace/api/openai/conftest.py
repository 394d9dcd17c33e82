"""The unmodified ``openai`` client, and a web server for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import openai
import pytest
from django.core.cache import cache

from tests import builders
from tests.unit.marketplace.api.web_server import serve


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
