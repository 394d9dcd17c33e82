"""A lane that decides whatever the API places, in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import connections

from marketplace.auction.bidding import wait
from marketplace.auction.lane.sweep import sweep_zones
from marketplace.common import clock
from marketplace.jobs.services import intake, read_next_upload
from tests import builders
from tests import market_builders as market
from tests.unit.marketplace.api.client import Api


@pytest.fixture
def lane(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The lane's own sweep, over and over, until the test is done."""
    # A first decision may have to wait for the engine to be compiled.
    monkeypatch.setattr(wait, "WAIT_S", 60.0)
    done = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not done.wait(0.01):
                sweep_zones(clock=clock.now)
        except BaseException as error:
            failed.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="lane")
    thread.start()
    yield
    done.set()
    thread.join(30)
    assert not failed


@pytest.fixture
def zone():
    zone = market.zone()
    market.node(zone)
    return zone


@pytest.fixture
def api():
    return Api(builders.organisation(usd="10"))


@pytest.fixture
def tokenizer_zone(tmp_path):
    """A zone whose tokenizer is on this machine: one token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    zone = market.zone(tokenizer_source=str(tmp_path))
    market.node(zone)
    return zone


@pytest.fixture(autouse=True)
def uploads_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker does when it is asked to, done at once."""

    def read(_task: str) -> None:
        while read_next_upload(clock=clock.now):
            pass

    monkeypatch.setattr(intake, "enqueue", read)
