from datetime import timedelta

import pytest

from marketplace.common.ttl_cache import TtlCache
from tests.builders import NOW


def test_value_is_read_once_within_its_time_and_again_after_it():
    reads = iter(["first", "second"])
    kept: TtlCache[str] = TtlCache(for_s=2)
    assert kept.get("k", now=NOW, read=lambda: next(reads)) == "first"
    assert kept.get("k", now=NOW + timedelta(seconds=1.9), read=lambda: next(reads)) == "first"
    assert kept.get("k", now=NOW + timedelta(seconds=2), read=lambda: next(reads)) == "second"


def test_time_that_goes_backwards_is_not_trusted():
    kept: TtlCache[int] = TtlCache(for_s=2)
    kept.get("k", now=NOW, read=lambda: 1)
    assert kept.get("k", now=NOW - timedelta(seconds=1), read=lambda: 2) == 2


def test_failed_read_is_not_kept():
    kept: TtlCache[int] = TtlCache(for_s=2)

    def broken() -> int:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        kept.get("k", now=NOW, read=broken)
    assert kept.get("k", now=NOW, read=lambda: 1) == 1


def test_several_are_read_together_and_only_those_that_are_not_held():
    kept: TtlCache[int] = TtlCache(for_s=2)
    asked = []

    def read(keys):
        asked.append(keys)
        return {key: len(key) for key in keys}

    assert kept.get_many(["a", "bb", "a"], now=NOW, read=read) == {"a": 1, "bb": 2}
    later = NOW + timedelta(seconds=1)
    assert kept.get_many(["bb", "ccc"], now=later, read=read) == {"bb": 2, "ccc": 3}
    assert kept.get("ccc", now=later, read=lambda: 0) == 3
    assert asked == [["a", "bb"], ["ccc"]]
