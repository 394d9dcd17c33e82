"""Emptying the database after a test that committed.

Django truncates every table and then writes all content types and permissions again, which takes
longer than most of these tests. Nearly all tables are empty by then, and deleting no rows is quick.
"""

from __future__ import annotations

from django.db import connection, transaction
from psycopg import sql

#: What migrating writes and no test changes.
LEFT_AS_THEY_ARE = {"django_migrations", "django_content_type", "auth_permission", "django_site"}


def delete_all_rows() -> None:
    """Delete the rows of every table, also those that may never be deleted.

    Triggers and foreign keys do not count meanwhile, for which the database's user has to be a
    superuser, as that of the tests' own server is.
    """
    tables = sorted(set(connection.introspection.django_table_names()) - LEFT_AS_THEY_ARE)
    deletions = [sql.SQL("DELETE FROM {}").format(sql.Identifier(table)) for table in tables]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql.SQL("; ").join(deletions))
