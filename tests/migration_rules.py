"""What a migration may not do while processes of the release before still run beside it.

``docs/how-to/migration.md`` states the rule. Most statements are judged by django-migration-linter
(https://github.com/3YOURMIND/django-migration-linter, ``docs/incompatibilities.md``). Two things
differ from its command: each operation is judged alone, because there one column's default in the
database excuses every other column of the migration; and statements are split and written in
capitals first, because SQL by hand is judged there only as far as it looks like Django's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import sqlparse
from django.db import connection, migrations
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django_migration_linter.migration_linter import MigrationLinter
from django_migration_linter.sql_analyser import PostgresqlAnalyser, analyse_sql_statements

#: Makes an app's first tables, which no other process knows.
EXEMPT = "0001_initial"
#: A member of a migration: from the code of a refusal to the reason why it is safe this time.
WAIVERS = "waivers"

_CREATED = re.compile(r'^CREATE TABLE (?:IF NOT EXISTS )?("?[\w.]+"?)')
_CONSTRAINED = re.compile(r'^ALTER TABLE (?:IF EXISTS )?(?:ONLY )?("?[\w.]+"?) ADD CONSTRAINT\b')
_INDEX_METHOD = re.compile(r"^(CREATE (?:UNIQUE )?INDEX .*? ON \S+) USING \w+")
#: What the linter does not look for, by code.
_STATEMENTS = {
    "RENAME": re.compile(r"^ALTER (?:TABLE|SEQUENCE|VIEW) .*\b(?:RENAME|SET SCHEMA)\b"),
    "DROP": re.compile(r"^(?:DROP (?!INDEX\b|TRIGGER\b|TABLE\b)|TRUNCATE\b)"),
    "DROP_COLUMN": re.compile(
        r"^ALTER TABLE .*\bDROP "
        r"(?!COLUMN\b|CONSTRAINT\b|DEFAULT\b|NOT NULL\b|IDENTITY\b|EXPRESSION\b)"
    ),
    "ALTER_COLUMN": re.compile(r"^ALTER TABLE .*\bALTER \S+ (?:SET DATA )?TYPE\b"),
    #: Computed values are written into each row under the lock.
    "REWRITE": re.compile(r"^ALTER TABLE .*\bADD .*\bGENERATED\b"),
    #: A default of one column would excuse another.
    "SEVERAL_ACTIONS": re.compile(r"^ALTER TABLE .*, (?:ADD|ALTER|DROP)\b"),
    "CREATE_TRIGGER": re.compile(
        r"^CREATE (?:OR REPLACE )?(?:CONSTRAINT )?(?:TRIGGER|RULE|POLICY)\b"
    ),
    "LOCK_TABLE": re.compile(r"^(?:LOCK|CLUSTER|VACUUM FULL)\b"),
    "LOCK_TIMEOUT": re.compile(r"^(?:SET|RESET|ALTER \w+|SELECT)\b.*\bLOCK_TIMEOUT\b|^RESET ALL"),
}


def find_refusals(migration: migrations.Migration, *, before: ProjectState) -> list[str]:
    """List the codes of what a migration does that an old process cannot live with, sorted.

    Runs nothing. ``before`` is the state of all models that the migration starts from. Call with
    a connection to PostgreSQL outside a transaction. A code is left out where the migration's
    ``waivers`` give a reason; a waiver without a reason, or for nothing, is a refusal too.
    """
    found: set[str] = set()
    created: list[str] = []
    state = before.clone()
    for operation in migration.operations:
        codes = set(_judge_code(operation))
        found |= codes
        if any(isinstance(one, migrations.RunPython) for one in _open(operation)):
            # Only a RunPython at the top is skipped by Django when it collects statements.
            if not isinstance(operation, migrations.RunPython):
                found.add("RUNPYTHON_NESTED")
            operation.state_forwards(migration.app_label, state)
            continue
        statements, state = _collect(operation, migration, state)
        found |= _judge_statements(statements, created)
        created += [one for one in statements if _CREATED.match(one)]
    waivers: dict[str, str] = getattr(migration, WAIVERS, {})
    idle = {code for code, reason in waivers.items() if code not in found or not reason.strip()}
    return sorted((found - set(waivers)) | {f"WAIVER {code}" for code in idle})


def _open(operation: Operation) -> Iterator[Operation]:
    """Go through an operation and those within it that act on the database."""
    yield operation
    for inner in getattr(operation, "database_operations", ()):
        yield from _open(inner)


def _judge_code(operation: Operation) -> Iterator[str]:
    for one in _open(operation):
        if isinstance(one, migrations.RunPython | migrations.RunSQL) and not one.reversible:
            yield "IRREVERSIBLE"
        if isinstance(one, migrations.RunPython):
            if not one.elidable:
                yield "NOT_ELIDABLE"
            codes = [one.code] + ([one.reverse_code] if one.reverse_code else [])
            for code in codes:
                for issue in MigrationLinter.get_runpython_model_import_issues(code):
                    yield issue.code


def _collect(
    operation: Operation, migration: migrations.Migration, state: ProjectState
) -> tuple[list[str], ProjectState]:
    """The statements of one operation in capitals, one a line, and the state after it."""
    alone = migrations.Migration(migration.name, migration.app_label)
    alone.operations = [operation]
    with ExitStack() as stack:
        editor = stack.enter_context(
            connection.schema_editor(collect_sql=True, atomic=migration.atomic)
        )
        state = alone.apply(state, editor, collect_sql=True)
        # What is left for the end, such as the index of a foreign key, is collected on leaving.
        collected = editor.collected_sql
    bare = sqlparse.format("\n".join(collected), strip_comments=True)
    split = (" ".join(one.rstrip(";").split()).upper() for one in sqlparse.split(bare))
    # The linter reads what stands before the columns as the name of the table.
    return [_INDEX_METHOD.sub(r"\1", one) for one in split if one], state


def _judge_statements(statements: list[str], created: list[str]) -> set[str]:
    """The codes of one operation's statements, after which tables this migration has made."""
    made = created + [one for one in statements if _CREATED.match(one)]
    tables = {match.group(1) for match in map(_CREATED.match, made) if match}
    found: set[str] = set()
    # Alone as well: of several indexes, say, the linter looks at the first.
    for some in (statements, *([one] for one in statements)):
        errors, _, warnings = analyse_sql_statements(PostgresqlAnalyser, made + some)
        found |= {issue.code for issue in errors + warnings}
    for statement in statements:
        found |= {code for code, pattern in _STATEMENTS.items() if pattern.search(statement)}
        constrained = _CONSTRAINED.match(statement)
        if constrained and constrained.group(1) not in tables:
            found.add("ADD_CONSTRAINT")
        # A column of this operation loses the default that only its old rows needed.
        if "DROP DEFAULT" in statement and not any("ADD COLUMN" in one for one in statements):
            found.add("DROP_DEFAULT")
    return found
