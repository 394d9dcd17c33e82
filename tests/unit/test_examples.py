"""``make test`` tries a share of each property's examples; at night all are tried."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import EXAMPLES_SHARE

TRIED: list[int] = []


@settings(max_examples=40, database=None)
@given(st.integers())
def test_a_property_is_tried_on_examples(number: int) -> None:
    TRIED.append(number)


def test_it_was_tried_on_its_share_of_them() -> None:
    # Worksteal may have sent the property to another process.
    assert len(TRIED) in (0, 40 * EXAMPLES_SHARE)
