from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from marketplace.common.ids import first_id, from_uuid, new_id, rename_id, to_uuid
from marketplace.payments.models import Entry


def test_an_id_is_its_prefix_and_a_lower_case_ulid() -> None:
    made = new_id("bid")
    prefix, _, ulid = made.partition("_")
    assert prefix == "bid"
    assert len(ulid) == 26
    assert made == made.lower()
    assert len(new_id("abcdefghijkl")) <= 40


def test_ids_of_later_moments_sort_later(time_machine) -> None:
    time_machine.move_to("2026-03-02T09:00:00Z")
    first = new_id("bid")
    time_machine.move_to("2026-03-02T09:00:01Z")
    assert first < new_id("bid")


def test_ten_thousand_ids_are_all_different() -> None:
    assert len({new_id("x1") for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize("prefix", ["", "b", "Bid", "1bid", "bid_", "abcdefghijklm"])
def test_a_prefix_that_would_not_read_as_one_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        new_id(prefix)


def test_ids_made_from_a_moment_on_come_after_its_first_one(time_machine) -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    time_machine.move_to(at, tick=False)
    assert first_id("bid", at) <= new_id("bid") < first_id("bid", at + timedelta(milliseconds=1))


def test_an_id_keeps_its_bits_and_its_order_as_a_uuid() -> None:
    made = sorted(new_id("ent") for _ in range(100))
    found = [to_uuid(one) for one in made]
    assert found == sorted(found)
    assert [from_uuid("ent", one) for one in found] == made
    for wrong in ("ent_", "ent_x", "ent_01kjpwd6m0wde6hzdnasz2nmnu"):
        with pytest.raises(ValueError, match=r"."):
            to_uuid(wrong)


def test_a_dense_id_takes_ids_of_its_own_kind_only() -> None:
    field = Entry._meta.pk
    made = new_id("ent")
    assert field.get_db_prep_value(made, connection) == to_uuid(made)
    assert field.get_db_prep_value(None, connection) is None
    assert field.from_db_value(to_uuid(made), None, connection) == made
    with pytest.raises(ValueError, match="no id of ent"):
        field.get_db_prep_value(rename_id(made, "bid"), connection)
