"""Natural batching: what was submitted while one batch ran is the next batch."""

from __future__ import annotations

import threading
import time

import pytest

from marketplace.api.batching import Batcher

pytestmark = pytest.mark.django_db


class Work:
    """Batches as they were processed; the first one waits for ``go_on``."""

    def __init__(self):
        self.batches = []
        self.started_at = []
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def __call__(self, batch):
        self.batches.append(batch)
        self.started_at.append(time.monotonic())
        self.begun.set()
        if len(self.batches) == 1:
            assert self.go_on.wait(60)
        return [item * 10 if item else ValueError("nothing") for item in batch]


@pytest.fixture
def work():
    return Work()


def batcher_of(work, *, limit=64, pace_s=lambda size: 0.0):
    return Batcher(work, name="test", limit=limit, pace_s=pace_s)


def test_what_comes_while_a_batch_runs_is_the_next_batch(work):
    batcher = batcher_of(work, limit=3)
    first = batcher.submit(1)
    assert work.begun.wait(60)
    others = [batcher.submit(item) for item in (2, 3, 4, 5)]
    work.go_on.set()
    assert [future.result(60) for future in (first, *others)] == [10, 20, 30, 40, 50]
    assert work.batches == [[1], [2, 3, 4], [5]]


def test_each_item_has_its_own_failure(work):
    batcher = batcher_of(work)
    first = batcher.submit(1)
    assert work.begun.wait(60)
    bad, good = batcher.submit(0), batcher.submit(2)
    work.go_on.set()
    assert (first.result(60), good.result(60)) == (10, 20)
    with pytest.raises(ValueError, match="nothing"):
        bad.result(60)


def test_failure_of_a_whole_batch_is_everybodys_and_the_next_batch_runs():
    failures = [OSError("gone")]

    def process(batch):
        if failures:
            raise failures.pop()
        return batch

    batcher = batcher_of(process)
    with pytest.raises(OSError, match="gone"):
        batcher.submit(1).result(60)
    assert batcher.submit(2).result(60) == 2


def test_item_whose_future_is_cancelled_in_time_is_not_processed(work):
    batcher = batcher_of(work)
    first = batcher.submit(1)
    assert work.begun.wait(60)
    gone, stays = batcher.submit(2), batcher.submit(3)
    assert gone.cancel()
    work.go_on.set()
    assert (first.result(60), stays.result(60)) == (10, 30)
    assert work.batches == [[1], [3]]


def test_next_batch_starts_no_sooner_than_the_pace_of_the_last_one_allows(work):
    sizes = []

    def pace_s(size):
        sizes.append(size)
        return 0.05 * size

    batcher = batcher_of(work, pace_s=pace_s)
    first = batcher.submit(1)
    assert work.begun.wait(60)
    crowd = [batcher.submit(item) for item in (2, 3)]
    work.go_on.set()
    for future in (first, *crowd):
        future.result(60)
    assert batcher.submit(4).result(60) == 40
    assert sizes == [1, 2, 1]
    first_at, crowd_at, last_at = work.started_at
    assert crowd_at - first_at >= 0.05
    assert last_at - crowd_at >= 0.1
