"""Rows that a process keeps are as they are in the database, always."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from marketplace.common.db.row_cache import RowCache
from marketplace.fleet.models import Zone
from tests import market_builders as market

pytestmark = pytest.mark.django_db


@pytest.fixture
def kept() -> RowCache[Zone]:
    return RowCache(Zone, by="name")


def test_rows_are_read_once_and_then_only_looked_at(kept, django_assert_num_queries) -> None:
    market.zone(name="one")
    market.zone(name="two")
    with django_assert_num_queries(2):
        first = kept.get_many(["one", "two", "three"])
    assert sorted(first) == ["one", "two"]
    with django_assert_num_queries(1):
        again = kept.get_many(["two", "one", "one"])
    assert again == {name: first[name] for name in ("one", "two")}


def test_what_a_caller_does_to_its_object_no_other_sees(kept) -> None:
    market.zone(name="one")
    for _ in range(2):
        mine = kept.get_many(["one"])["one"]
        mine.is_open = False
        mine.note = "mine"
    theirs = kept.get_many(["one"])["one"]
    assert theirs.is_open
    assert not hasattr(theirs, "note")


def test_row_that_was_changed_is_read_anew_and_no_other(kept) -> None:
    market.zone(name="one")
    market.zone(name="two")
    first = kept.get_many(["one", "two"])
    Zone.objects.filter(name="one").update(is_open=False)
    with CaptureQueriesContext(connection) as asked:
        second = kept.get_many(["one", "two"])
    [_, read] = asked.captured_queries
    assert "'one'" in read["sql"]
    assert "'two'" not in read["sql"]
    assert (first["one"].is_open, second["one"].is_open) == (True, False)
    assert second["two"] == first["two"]
    Zone.objects.filter(name="one").update(is_open=True)
    assert kept.get_many(["one"])["one"].is_open


def test_change_that_is_undone_is_not_kept(kept) -> None:
    market.zone(name="one")
    kept.get_many(["one"])
    with transaction.atomic():
        Zone.objects.filter(name="one").update(is_open=False)
        assert not kept.get_many(["one"])["one"].is_open
        transaction.set_rollback(True)
    assert kept.get_many(["one"])["one"].is_open


def test_row_that_is_gone_or_never_was_is_left_out(kept, django_assert_num_queries) -> None:
    market.zone(name="one")
    kept.get_many(["one"])
    Zone.objects.update(name="other")
    assert kept.get_many(["one"]) == {}
    with django_assert_num_queries(0):
        assert kept.get_many(["with a \0"]) == {}
