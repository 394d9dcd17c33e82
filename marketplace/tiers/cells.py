"""Cells of many jobs asked of the database, so that ten thousand jobs need not be read."""

from __future__ import annotations

from typing import Any

from django.db.models import BigIntegerField, F, Func, IntegerField, JSONField, Value
from django.db.models.functions import Cast, JSONObject


class _SlotsFrom(Func):
    """The slots of ``cells`` from one on, in slot order."""

    function = "jsonb_path_query_array"
    # The path stands between the two arguments.
    arg_joiner = ", '$[*][0] ? (@ >= $from)'::jsonpath, "
    output_field = JSONField()  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


class _FirstSlotFrom(_SlotsFrom):
    function = "jsonb_path_query_first"


class _Length(Func):
    function = "jsonb_array_length"
    output_field = IntegerField()  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def first_slot_from(slot: int) -> Any:
    """The first slot of a job's cells that is not before ``slot``; null when there is none."""
    return Cast(_FirstSlotFrom(F("cells"), _from(slot)), BigIntegerField())


def slots_from(slot: int) -> Any:
    """How many of a job's cells are not before ``slot``."""
    return _Length(_SlotsFrom(F("cells"), _from(slot)))


def slots_all() -> Any:
    """How many cells a job has had."""
    return _Length(F("cells"))


def _from(slot: int) -> Any:
    return JSONObject(**{"from": Value(slot, output_field=BigIntegerField())})
