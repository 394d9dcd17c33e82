"""Two roles of the database: one owns the tables, the market's processes run as another.

What owns a table may switch its triggers off. The role that the market runs as owns nothing: it may
not truncate, change triggers or make tables, and where a model refuses an update or a delete by a
trigger, it lacks the right as well. Balances follow postings by a function with the owner's rights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString
from urllib.parse import unquote, urlsplit

import dj_database_url
import pgtrigger
from django.apps import apps
from django.conf import settings
from django.db import connection, models
from psycopg import sql

from marketplace.payments.models import Entry, LedgerAccount, Posting

#: Of rows that change through a trigger alone, the column that gives the right to lock
#: them; another trigger keeps it as it is.
LOCKED_BY: dict[type[models.Model], LiteralString] = {LedgerAccount: "id"}
#: The trigger that changes those rows.
ACTS_FOR_OWNER = (Posting, "balance_apply")


def connect_as_owner() -> None:
    """Let this process act as the owner of the tables, where ``DATABASE_OWNER_URL`` names one."""
    if not settings.DATABASE_OWNER_URL:
        return
    owner: Mapping[str, Any] = dict(dj_database_url.parse(settings.DATABASE_OWNER_URL))
    connection.close()
    for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT"):
        connection.settings_dict[name] = owner[name]


def grant_rights() -> None:
    """Give the role of ``DATABASE_URL`` what the market's processes need, and nothing else.

    Call as the owner. The role is made where it is missing. Nothing happens without
    ``DATABASE_OWNER_URL``: then one role does all.
    """
    if not settings.DATABASE_OWNER_URL:
        return
    found = urlsplit(settings.DATABASE_URL)
    role = unquote(found.username or "")
    with connection.cursor() as cursor:
        _ensure_role(cursor, role, unquote(found.password or ""))
        cursor.execute(sql.SQL("; ").join(_list_grants(role)))  # type: ignore[arg-type]


def _ensure_role(cursor: Any, role: str, password: str) -> None:
    cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", [role])
    if cursor.fetchone() is None:
        cursor.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    if password:
        cursor.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(password))
        )


def _list_grants(role: str) -> list[sql.Composed]:
    names = {
        "role": sql.Identifier(role),
        "database": sql.Identifier(str(connection.settings_dict["NAME"])),
        "function": sql.Identifier(_find_function(*ACTS_FOR_OWNER)),
    }
    statements: list[LiteralString] = [
        # A temporary table could have a trigger of its own.
        "REVOKE CREATE, TEMPORARY ON DATABASE {database} FROM PUBLIC",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
        "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {role}",
        "ALTER FUNCTION {function}() SECURITY DEFINER SET search_path = public, pg_temp",
    ]
    grants = [sql.SQL(statement).format(**names) for statement in statements]
    for model in apps.get_models(include_auto_created=True):
        if model._meta.managed and not model._meta.proxy:
            table = sql.Identifier(model._meta.db_table)
            grants.append(
                sql.SQL("GRANT {} ON {} TO {}").format(
                    sql.SQL(", ".join(list_rights(model))), table, names["role"]
                )
            )
    return grants


def list_rights(model: type[models.Model]) -> list[LiteralString]:
    """What the market's processes may do to a table, beside reading it."""
    refused = {
        str(operation)
        for of, trigger in pgtrigger.registered()
        # Not kinds that extend it: those refuse some columns only.
        if of is model and type(trigger) is pgtrigger.Protect and trigger.condition is None
        for operation in getattr(trigger.operation, "operations", [trigger.operation])
    }
    update: LiteralString = f"UPDATE ({LOCKED_BY[model]})" if model in LOCKED_BY else "UPDATE"
    rights: dict[str, LiteralString] = {"INSERT": "INSERT", "UPDATE": update, "DELETE": "DELETE"}
    return [right for name, right in rights.items() if name not in refused]


def _find_function(model: type[models.Model], name: str) -> str:
    """The name in the database of a trigger's function."""
    [found] = [t for of, t in pgtrigger.registered() if of is model and t.name == name]
    return found.get_pgid(model)  # type: ignore[arg-type]


def find_excess_rights() -> list[str]:
    """What the role that this process runs as may do and should not, in words."""
    with connection.cursor() as cursor:
        cursor.execute(_EXCESS)
        found = [words for (words,) in cursor.fetchall()]
        for model in (Entry, Posting):
            table = model._meta.db_table
            cursor.execute("SELECT has_table_privilege(%s, %s)", [table, _CHANGES])
            [(may_change,)] = cursor.fetchall()
            found += [f"may change {table}"] if may_change else []
        return found


_CHANGES = "UPDATE, DELETE, TRUNCATE, TRIGGER"
_EXCESS = """
SELECT 'is a superuser' FROM pg_roles WHERE rolname = current_user AND rolsuper
UNION ALL
SELECT 'owns ' || count(*) || ' tables' FROM pg_tables
WHERE schemaname = 'public' AND pg_has_role(current_user, tableowner, 'USAGE') HAVING count(*) > 0
"""
