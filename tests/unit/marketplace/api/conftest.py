"""A lane that decides whatever the API places, in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import connections

from marketplace.auction.sweeps import zones_sweep
from marketplace.common import clock


@pytest.fixture
def lane(transactional_db: None) -> Iterator[None]:
    """The lane's own sweep, over and over, until the test is done."""
    done = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not done.wait(0.01):
                zones_sweep(clock=clock.now)
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
