"""How long statements may take."""

from django.db import connection


def allow_long_statements() -> None:
    """Let the statements of this transaction take as long as they do, in the web server as well."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
