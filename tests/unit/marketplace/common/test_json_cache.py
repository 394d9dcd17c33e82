"""What lies in the cache is data: a pickle that somebody put there is never loaded."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from django.conf import settings
from django.core.cache import cache
from redis import Redis


@pytest.fixture(autouse=True)
def emptied():
    yield
    cache.delete("tried")


@pytest.mark.parametrize("value", [7, True, None, 1.5, "text", [1.25, 2.5], {"a": [1, "b"]}])
def test_what_is_written_is_what_is_read(value: object) -> None:
    cache.set("tried", value)
    assert cache.get("tried", "missing") == value


def test_a_counter_is_counted_up_in_redis() -> None:
    cache.set("tried", 1)
    assert cache.incr("tried") == 2
    assert cache.get("tried") == 2


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_a_pickle_in_redis_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    with Redis.from_url(settings.REDIS_URL) as redis:
        redis.set(cache.make_key("tried"), pickle.dumps(Trap(sprung)))
    with pytest.raises(ValueError, match="utf-8"):
        cache.get("tried")
    assert not sprung.exists()
