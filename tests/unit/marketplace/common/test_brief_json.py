"""A row has what is not usual, and is read as it was written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from django.core.exceptions import FieldError
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from marketplace.auction.models import Bid
from marketplace.common.brief_json import add_usual, leave_out_usual
from marketplace.common.db.bulk_writes import send_updates
from marketplace.jobs.models import Job
from marketplace.jobs.usual_terms import USUAL_RESULT, USUAL_TERMS, USUAL_WISH
from tests import builders
from tests import market_builders as market
from workers.protocol.job_terms import JobTerms, PreparationWish
from workers.protocol.wire import to_json

USUAL = {
    "count": 0,
    "share": 1.0,
    "names": [],
    "inner": {"on": False, "text": ""},
    "wish": [None, {"plan": "", "kinds": ["a"]}],
    "start": None,
}
WHOLE = {
    "count": 0,
    "share": 1.0,
    "names": [],
    "inner": {"on": False, "text": ""},
    "wish": None,
    "start": None,
}

leaves = st.sampled_from([None, False, True, 0, 1, 0.0, 1.0, "", "a"])
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["", "count", "on", "text", "plan", "kinds", "wish", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("", "x", *USUAL), values)))
def test_what_is_read_is_what_was_written(value: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(leave_out_usual(value, USUAL)))
    assert json.dumps(add_usual(stored, USUAL), sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    ("changed", "stored"),
    [
        ({}, {}),
        ({"count": 2}, {"count": 2}),
        # 0.0 and false are not 0.
        ({"count": 0.0}, {"count": 0.0}),
        ({"count": False}, {"count": False}),
        ({"inner": {"on": True, "text": ""}}, {"inner": {"on": True}}),
        ({"wish": {"plan": "", "kinds": ["a"]}}, {"wish": {}}),
        ({"wish": {"plan": "p", "kinds": ["a"]}}, {"wish": {"plan": "p"}}),
        ({"inner": None}, {"inner": None}),
        # What is missing is not what is usual.
        ({"inner": {"on": False}}, {"inner": {"": ["text"]}}),
        ({"inner": {"": 1, "on": False}}, {"inner": {"": {"": 1, "on": False}}}),
        ({"start": {"job_id": "j"}}, {"start": {"job_id": "j"}}),
    ],
)
def test_only_what_is_not_usual_is_stored(changed: dict[str, Any], stored: dict[str, Any]) -> None:
    assert leave_out_usual(WHOLE | changed, USUAL) == stored
    assert json.dumps(add_usual(stored, USUAL), sort_keys=True) == json.dumps(
        WHOLE | changed, sort_keys=True
    )


def test_what_is_read_can_be_changed_without_the_next() -> None:
    add_usual({}, USUAL)["names"].append("a")
    assert add_usual({}, USUAL)["names"] == []


def test_usual_values_are_members_of_what_they_are_of() -> None:
    """A name that is no field's would leave nothing out."""
    assert USUAL_WISH.keys() == to_json(PreparationWish()).keys()
    bid_terms = {"adapter", "training", *USUAL_TERMS}
    assert bid_terms < set(JobTerms.__slots__)
    assert "lease_token" not in USUAL_RESULT


def read_stored(bid: Bid, column: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column}::text FROM auction_bid WHERE id = %s", [bid.pk])
        [(text,)] = cursor.fetchall()
    return None if text is None else json.loads(text)


@pytest.mark.django_db
def test_terms_of_a_bid_are_stored_by_what_is_their_own() -> None:
    bid = market.bid(builders.organisation(usd="100"), market.zone())
    terms = bid.terms
    usual = replace(
        terms,
        adapter=replace(terms.adapter, rank=16, alpha=32.0),
        training=replace(terms.training, learning_rate=2e-4, sequence_length=512),
    )
    bid.terms = usual
    bid.save(update_fields=["terms"])
    assert read_stored(bid, "terms") == {
        "dataset": bid.dataset_id,
        "adapter": {"kind": "lora", "looks_up": False},
        "training": {"epochs": usual.training.epochs},
    }
    assert Bid.objects.get(pk=bid.pk).terms == usual
    assert Bid.objects.values_list("terms", flat=True).get(pk=bid.pk) == usual
    Bid.objects.filter(pk=bid.pk).update(terms=terms)
    assert Bid.objects.get(pk=bid.pk).terms == terms
    bid.terms = usual
    Bid.objects.bulk_update([bid], ["terms"])
    assert "rank" not in read_stored(bid, "terms")["adapter"]
    assert Bid.objects.get(pk=bid.pk).terms == usual


@pytest.mark.django_db
def test_many_rows_that_are_written_at_once_leave_out_the_same() -> None:
    bid = market.bid(builders.organisation(usd="100"), market.zone())
    parts = dict.fromkeys(
        ("vendor", "operational", "compute", "memory", "rounding", "fee", "card", "tax"), 0.0
    )
    send_updates(Bid, ["parts"], [(bid.pk, parts | {"operational": 3.5})])
    assert read_stored(bid, "parts") == {"operational": 3.5}
    assert Bid.objects.get(pk=bid.pk).parts == parts | {"operational": 3.5}
    send_updates(Bid, ["parts"], [(bid.pk, None)])
    assert Bid.objects.get(pk=bid.pk).parts is None


@pytest.mark.parametrize(
    "asked",
    ["terms__training__batch_size", "terms__adapter__rank__gte", "terms__preparation__plan"],
)
def test_what_is_left_out_is_not_looked_up(asked: str) -> None:
    with pytest.raises(FieldError, match="left out"):
        str(Job.objects.filter(**{asked: 8}).query)


def test_what_is_always_stored_is_looked_up() -> None:
    for asked in ("terms__training__epochs", "terms__adapter__kind", "terms__start__job_id"):
        assert str(Job.objects.filter(**{asked: 3}).query)
