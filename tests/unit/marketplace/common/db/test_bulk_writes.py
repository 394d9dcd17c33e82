"""Many rows in one statement, and everything that holds for one."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction

from marketplace.auction.models import Bid
from marketplace.common.db.bulk_writes import (
    JsonText,
    insert_rows,
    insert_values,
    send_updates,
)
from marketplace.payments.models import Entry, EntryKind, Hold
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.wire import dumps

pytestmark = pytest.mark.django_db


def hold(owner, reference, amount_micros=5):
    return Hold(organisation=owner, reference=reference, amount_micros=amount_micros, held_at=NOW)


def test_rows_are_stored_as_one_by_one_with_what_the_database_fills_in():
    zone = market.zone()
    placed = market.bid(builders.organisation(usd="10"), zone, key="k1")
    fields = [field.attname for field in Bid._meta.concrete_fields]
    first = Bid.objects.get(pk=placed.pk)
    copies = []
    for number in range(2):
        copy = Bid(
            **{
                name: getattr(first, name)
                for name in fields
                if name not in ("id", "arrival", "idempotency_key")
            }
        )
        copy.idempotency_key = f"k{number + 2}"
        copies.append(copy)
    assert insert_rows(copies) == 2
    for copy in copies:
        stored = Bid.objects.get(pk=copy.pk)
        assert copy.arrival == stored.arrival > first.arrival
        for name in fields:
            if name not in ("id", "arrival", "idempotency_key"):
                assert getattr(stored, name) == getattr(first, name), name
        copy.name = "renamed"
        copy.save()
        assert Bid.objects.get(pk=copy.pk).name == "renamed"


def test_texts_and_json_come_back_as_they_were_given():
    zone = market.zone()
    first = Bid.objects.get(pk=market.bid(builders.organisation(usd="10"), zone).pk)
    first.pk, first.position, first._state.adding = "bid_other", None, True
    first.arrival = 10**12
    first.name = "tab\t newline\n back\\slash \\N NULL \u2603"
    first.parts = {"a": [1, 2.5, None, "\\.", "\u2603"], "b": {}}
    first.resolved = []
    insert_rows([first])
    stored = Bid.objects.get(pk="bid_other")
    assert (stored.name, stored.parts, stored.resolved) == (first.name, first.parts, [])
    assert stored.arrival == 10**12


def test_no_rows_are_no_statement(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert insert_rows([]) == 0
        send_updates(Hold, ["status"], [])


def test_one_row_that_is_refused_stores_none():
    owner = builders.organisation()
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_rows([hold(owner, "a"), hold(owner, "b", amount_micros=0)])
    assert not Hold.objects.exists()
    insert_rows([hold(owner, "a"), hold(owner, "b")])
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_rows([hold(owner, "c"), hold(owner, "a")])
    assert set(Hold.objects.values_list("reference", flat=True)) == {"a", "b"}


def test_row_whose_insert_was_undone_can_be_stored_again():
    owner = builders.organisation()
    row = hold(owner, "a")
    try:
        with transaction.atomic():
            insert_rows([row])
            raise RuntimeError
    except RuntimeError:
        pass
    insert_rows([row])
    assert Hold.objects.get().pk == row.pk


def test_triggers_hold_for_copied_rows():
    """An entry needs two postings at least, whoever writes it, when the transaction ends."""

    def store_alone() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            insert_rows([Entry(kind=EntryKind.HOLD, reference="r", booked_at=NOW)])
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")

    with pytest.raises(IntegrityError, match="fewer than two postings"):
        store_alone()


def test_values_are_stored_with_the_model_s_defaults_and_those_of_the_database():
    zone = market.zone()
    placed = Bid.objects.get(pk=market.bid(builders.organisation(usd="10"), zone).pk)
    given = {
        "organisation_id": placed.organisation_id,
        "dataset_id": placed.dataset_id,
        "zone_id": zone.pk,
        "name": "tab\t newline\n back\\slash \\N \u2603",
        "price_micros": 7,
        "deadline_at": NOW,
        "parts": {"rank": 8, "name": "\u2603"},
        "terms": JsonText(dumps(placed.terms)),
        "samples": 1,
        "compute_demand": 0.1 + 0.2,
        "memory_demand_gb": 1e-7,
        "rates": {},
        "request_hash": "h",
        "created_at": NOW,
    }
    rows = [tuple(given.values()), tuple((given | {"price_micros": 8}).values())]
    assert insert_values(Bid, tuple(given), rows) == 2
    first, second = Bid.objects.exclude(pk=placed.pk).order_by("price_micros")
    for name, value in given.items():
        if name != "terms":
            assert getattr(first, name) == value, name
    assert first.terms == placed.terms
    assert first.pk != second.pk
    assert placed.arrival < first.arrival < second.arrival
    assert (first.status, first.resolved, first.cells, first.failure) == ("pending", [], None, "")
    assert (first.idempotency_key, first.refund_micros, first.placed_by_id) == (None, 0, None)


def test_values_without_what_has_no_default_are_refused(django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(TypeError, match="amount_micros has no def"):
        insert_values(Hold, ("organisation_id", "reference", "held_at"), [("o", "r", NOW)])
    with django_assert_num_queries(0):
        assert insert_values(Hold, ("organisation_id", "amount_micros", "held_at"), []) == 0


def test_values_change_the_rows_of_their_keys_and_no_others():
    zone, owner = market.zone(), builders.organisation(usd="10")
    one, other, third = (market.bid(owner, zone, price_micros=5) for _ in range(3))
    names = ("decided_at", "position", "parts", "resolved", "compute_demand", "failure", "failures")
    text = "'quoted' \"twice\" \\ tab\t \u2603 %s {}"
    rows = [
        (one.pk, NOW, 3, {"a": [0.1, None, text]}, [[1, "node"]], 0.1 + 0.2, text, 1),
        (other.pk, None, None, None, [], 1e300, "", 0),
        ("bid_unknown", NOW, 4, {}, [], 1.0, "", 0),
    ]
    send_updates(Bid, names, rows)
    for row in rows[:2]:
        stored = Bid.objects.get(pk=row[0])
        assert tuple(getattr(stored, name) for name in names) == row[1:]
    assert Bid.objects.get(pk=third.pk).position is None
