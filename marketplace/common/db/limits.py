"""How long transactions and their statements may take."""

from django.db import connection


def allow_long_transaction() -> None:
    """Let this transaction take as long as it does, in statements and between them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('statement_timeout', '0', true),"
            " set_config('idle_in_transaction_session_timeout', '0', true)"
        )
