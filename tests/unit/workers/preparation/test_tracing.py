"""Rows that leave with their ids."""

from __future__ import annotations

import io
import json

from workers.preparation.tracing import iter_traced_lines


def test_the_owners_own_column_does_not_take_the_place_of_the_id():
    sent = io.BytesIO(b'{"row_id": 7, "text": "a"}\n{"text": "b"}\n')
    found = [json.loads(row) for row in iter_traced_lines(sent)]
    assert found == [{"row_id": 1, "text": "a"}, {"row_id": 2, "text": "b"}]
