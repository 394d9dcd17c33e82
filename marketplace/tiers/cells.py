"""Cells of many jobs asked of the database, so that ten thousand jobs need not be read.

Cells stand in slot order: a job whose first one is still to come, as that of every job
that waits, is answered by that one, and only the others are searched through.
"""

from __future__ import annotations

from typing import Any

from django.db.models import BigIntegerField, F, Func


class _FirstSlotFrom(Func):
    template = """(
        CASE WHEN (%(expressions)s -> 0 ->> 0)::bigint >= %(slot)d
        THEN (%(expressions)s -> 0 ->> 0)::bigint
        ELSE jsonb_path_query_first(
            %(expressions)s, '$[*][0] ? (@ >= $from)', jsonb_build_object('from', %(slot)d)
        )::bigint END
    )"""
    output_field = BigIntegerField()  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def first_slot_from(slot: int) -> Any:
    """The first slot of a job's cells that is not before ``slot``; null when there is none."""
    return _FirstSlotFrom(F("cells"), slot=slot)
