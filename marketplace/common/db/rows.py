"""Rows of statements that the ORM does not write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection


def read_rows(text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run a statement of an app's ``queries`` or ``locks`` and read its rows."""
    with connection.cursor() as cursor:
        cursor.execute(text, values)
        return cursor.fetchall()
