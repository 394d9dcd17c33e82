"""A lane that decides whatever the API places, in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import connections

from marketplace.auction.bidding import wait
from marketplace.auction.lane import wakeups
from marketplace.auction.lane.sweep import sweep_zones
from marketplace.common import clock
from marketplace.jobs.services import intake
from tests import builders
from tests import market_builders as market
from tests.durable_work import do_at_once
from tests.unit.marketplace.api.client import ROWS, Api
from tests.unit.marketplace.api.web_server import serve

#: Slots begin unasked.
SWEPT_EVERY_S = 0.1


@pytest.fixture
def lane(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The lane's own sweep, whenever it is woken and now and then, until the test is done."""
    # A first decision may have to wait for the engine to be compiled.
    monkeypatch.setattr(wait, "WAIT_S", 60.0)
    woken, done = threading.Event(), threading.Event()
    monkeypatch.setattr(wakeups, "wake_lane", lambda *, zone_id: woken.set())
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not done.is_set():
                woken.clear()
                sweep_zones(clock=clock.now)
                woken.wait(SWEPT_EVERY_S)
        except BaseException as error:
            failed.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="lane")
    thread.start()
    yield
    done.set()
    woken.set()
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
    monkeypatch.setattr(intake, "enqueue_work", do_at_once)


@pytest.fixture
def owner(db):
    return builders.organisation(usd="10")


@pytest.fixture
def access(owner, monkeypatch, tmp_path):
    """A served market and a key of it, where the SDK looks for them."""
    _, secret = builders.api_key(owner)
    with serve() as url:
        monkeypatch.setenv("FINETENDER_URL", url)
        monkeypatch.setenv("FINETENDER_API_KEY", secret)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        yield url, secret


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS)
    return path
