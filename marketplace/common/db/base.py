"""The database backend (``DATABASES``): Django's for PostgreSQL, with two differences.

Django gives each indexed text column a second index for patterns that begin with a text. Ours are
ids and names that are compared as a whole: a seventh of the database was indexes that nobody read.

And ``SESSION_SETTINGS``, by name, hold for each connection however it was opened: a pooler passes
on no options of a start.
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

    def _configure_connection(self, connection: Any) -> bool:
        """Set up a connection that was just opened; whether that has to be committed."""
        is_changed = super()._configure_connection(connection)  # type: ignore[misc]
        wanted: dict[str, str] = self.settings_dict.get("SESSION_SETTINGS", {})
        if not wanted:
            return is_changed
        calls = ", ".join(["set_config(%s, %s, false)"] * len(wanted))
        connection.execute(f"SELECT {calls}", [part for pair in wanted.items() for part in pair])
        return True
