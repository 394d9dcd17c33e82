"""Named tuples as rows: their columns come from the model."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from marketplace.common.db.row_types import list_columns
from marketplace.payments.models import Hold


class Known(NamedTuple):
    pk: str
    organisation_id: str
    amount_micros: int


class Unknown(NamedTuple):
    pk: str
    amount: int


def test_columns_are_those_of_the_fields_in_their_order() -> None:
    assert list_columns(Hold, Known) == "id, organisation_id, amount_micros"


def test_a_field_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(LookupError, match="Hold has no column amount"):
        list_columns(Hold, Unknown)
