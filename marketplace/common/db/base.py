"""The database backend (``DATABASES``): Django's for PostgreSQL, without its indexes for ``LIKE``.

Django gives each indexed text column a second index for patterns that begin with a text. Ours are
ids and names that are compared as a whole: a seventh of the database was indexes that nobody read.
"""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import base
from django.db.backends.postgresql.schema import DatabaseSchemaEditor


class SchemaEditor(DatabaseSchemaEditor):
    """Makes tables."""

    def _create_like_index_sql(self, model: Any, field: Any) -> None:
        """Make none."""


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection; Django loads this class by its name."""

    SchemaEditorClass = SchemaEditor  # pyright: ignore[reportAssignmentType]
