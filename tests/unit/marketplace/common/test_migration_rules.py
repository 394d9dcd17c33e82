"""Migrations after the first release leave the tables such that old processes work on them."""

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pgtrigger
import pgtrigger.migrations
import pytest
from django.apps import apps
from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.core.management import call_command
from django.core.management.commands import migrate
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation

from marketplace.accounts.models import Organisation
from tests.migration_rules import EXEMPT, find_refusals

APP = "accounts"
TABLE = '"accounts_organisation"'


@pytest.fixture(scope="module")
def loader(django_db_setup, django_db_blocker) -> Iterator[MigrationLoader]:
    # Nothing is written. A test's usual transaction would forbid indexes made concurrently.
    with django_db_blocker.unblock():
        yield MigrationLoader(connection)
        connection.close()


def _judge(loader: MigrationLoader, *operations: Operation, **members: Any) -> list[str]:
    migration = migrations.Migration("0002_made_up", APP)
    migration.operations = list(operations)
    for name, value in members.items():
        setattr(migration, name, value)
    return find_refusals(migration, before=loader.project_state())


def _add(name: str = "colour", **options: Any) -> migrations.AddField:
    return migrations.AddField("organisation", name, models.IntegerField(**options))


def _sql(sql: str, reverse: str | None = migrations.RunSQL.noop) -> migrations.RunSQL:
    return migrations.RunSQL(sql, reverse)


def _apart(*operations: Operation) -> migrations.SeparateDatabaseAndState:
    return migrations.SeparateDatabaseAndState(database_operations=list(operations))


def _fill(apps: Any, schema_editor: Any) -> None:
    raise AssertionError("a migration that is judged runs nothing")


def _fill_imported(apps: Any, schema_editor: Any) -> None:
    Organisation.objects.update(retain_days=1)


def _unfill(apps: Any, schema_editor: Any) -> None: ...


INDEX = models.Index(fields=["name"], name="made_up")
TRIGGER = pgtrigger.Trigger(
    name="made_up", when=pgtrigger.Before, operation=pgtrigger.Delete, func="RETURN NULL;"
)
COMPILED = TRIGGER.compile(Organisation)


def test_migrations_since_the_first_release_let_the_release_before_work(loader) -> None:
    ours = {app.label for app in apps.get_app_configs() if app.name.startswith("marketplace.")}
    found = {
        f"{label}.{name}": refusals
        for (label, name), migration in loader.disk_migrations.items()
        if label in ours
        and name != EXEMPT
        and (
            refusals := find_refusals(
                migration, before=loader.project_state((label, name), at_end=False)
            )
        )
    }
    assert found == {}, "see docs/how-to/migration.md"


def test_what_is_exempt_are_the_first_tables_of_each_app_alone(loader) -> None:
    for (_, name), migration in loader.disk_migrations.items():
        if name == EXEMPT and migration.__module__.startswith("marketplace."):
            assert migration.initial


REFUSED = {
    "a column that is gone": (migrations.RemoveField("organisation", "slug"), ["DROP_COLUMN"]),
    "a column dropped by hand": (_sql(f"alter table {TABLE}\n  drop slug"), ["DROP_COLUMN"]),
    "a column dropped apart from the state": (
        _apart(migrations.RemoveField("organisation", "slug")),
        ["DROP_COLUMN"],
    ),
    "a table that is gone": (migrations.DeleteModel("membership"), ["DROP_TABLE"]),
    "a table behind another statement": (_sql("select 1; drop table x"), ["DROP_TABLE"]),
    "a sequence that is gone": (_sql("DROP SEQUENCE auction_bid_arrival"), ["DROP"]),
    "an emptied table": (_sql(f"truncate {TABLE}"), ["DROP"]),
    "a column with another name": (
        migrations.RenameField("organisation", "slug", "handle"),
        ["RENAME", "RENAME_COLUMN"],
    ),
    "a column renamed by hand": (_sql(f"alter table {TABLE} rename slug to handle"), ["RENAME"]),
    "a table with another name": (
        migrations.AlterModelTable("organisation", "companies"),
        ["RENAME", "RENAME_TABLE"],
    ),
    "a new column that old inserts leave empty": (_add(default=0), ["NOT_NULL"]),
    "a column that may no longer be empty": (
        migrations.AlterField("organisation", "retain_days", models.IntegerField(db_default=0)),
        ["NOT_NULL"],
    ),
    "a default that old inserts rest on": (
        migrations.AlterField("organisation", "verified_only", models.BooleanField(default=False)),
        ["DROP_DEFAULT"],
    ),
    "another type": (
        migrations.AlterField("organisation", "name", models.CharField(max_length=20)),
        ["ALTER_COLUMN"],
    ),
    "another type by hand": (_sql(f"alter table {TABLE} alter slug type text"), ["ALTER_COLUMN"]),
    "a column whose values are computed": (
        migrations.AddField(
            "organisation",
            "days",
            models.GeneratedField(
                expression=models.F("retain_days") + 1,
                output_field=models.IntegerField(null=True),
                db_persist=True,
            ),
        ),
        ["REWRITE"],
    ),
    "a table in another schema": (_sql(f"ALTER TABLE {TABLE} SET SCHEMA old"), ["RENAME"]),
    "an index that locks out writers": (
        migrations.AddIndex("organisation", INDEX),
        ["CREATE_INDEX"],
    ),
    "an index of another method": (
        _sql(f"CREATE INDEX made_up ON {TABLE} USING hash (name)"),
        ["CREATE_INDEX"],
    ),
    "the index of a foreign key": (
        migrations.AddField(
            "organisation",
            "head",
            models.ForeignKey("accounts.User", models.PROTECT, null=True, related_name="+"),
        ),
        ["CREATE_INDEX"],
    ),
    "a second index behind one of a new table": (
        _sql(
            'CREATE TABLE "x" (id int); CREATE INDEX a ON "x" (id);'
            f" CREATE INDEX b ON {TABLE} (name)"
        ),
        ["CREATE_INDEX"],
    ),
    "an index dropped under a lock": (_sql("DROP INDEX made_up"), ["DROP_INDEX"]),
    "an index made again": (_sql("REINDEX INDEX made_up"), ["REINDEX"]),
    "values that must differ from now on": (
        migrations.AddConstraint(
            "organisation", models.UniqueConstraint(fields=["name"], name="made_up")
        ),
        ["ADD_CONSTRAINT", "ADD_UNIQUE"],
    ),
    "values that are checked from now on": (
        migrations.AddConstraint(
            "organisation",
            models.CheckConstraint(condition=models.Q(retain_days__gt=0), name="made_up"),
        ),
        ["ADD_CONSTRAINT"],
    ),
    "a trigger": (
        pgtrigger.migrations.AddTrigger(model_name="organisation", trigger=COMPILED),
        ["CREATE_TRIGGER"],
    ),
    "a rule": (_sql(f"CREATE RULE r AS ON DELETE TO {TABLE} DO NOTHING"), ["CREATE_TRIGGER"]),
    "a drop within a block": (
        _sql(f"DO $$ BEGIN alter table {TABLE} drop column slug; END $$"),
        ["DROP_COLUMN"],
    ),
    "a lock for long": (_sql(f"LOCK TABLE {TABLE}"), ["LOCK_TABLE"]),
    "a wait without end": (_sql("SET LOCAL lock_timeout = 0"), ["LOCK_TIMEOUT"]),
    "SQL that cannot be taken back": (_sql("SELECT 1", None), ["IRREVERSIBLE"]),
    "Python that cannot be taken back": (
        migrations.RunPython(_fill, elidable=True),
        ["IRREVERSIBLE"],
    ),
    "Python that stays for ever": (migrations.RunPython(_fill, _unfill), ["NOT_ELIDABLE"]),
    "Python on today's models": (
        migrations.RunPython(_fill_imported, _unfill, elidable=True),
        ["RUNPYTHON_MODEL_IMPORT"],
    ),
    "Python within another operation": (
        _apart(migrations.RunPython(_fill, _unfill, elidable=True)),
        ["RUNPYTHON_NESTED"],
    ),
}


@pytest.mark.parametrize(("operation", "codes"), REFUSED.values(), ids=REFUSED)
def test_refused_is(loader, operation: Operation, codes: list[str]) -> None:
    assert _judge(loader, operation, atomic=False) == codes


ALLOWED = {
    "a column that may be empty": _add(null=True),
    "a column with a default in the database": _add(db_default=0),
    "a column that new rows fill and old ones had filled": _add(null=True, default=3),
    "a foreign key without its index": migrations.AddField(
        "organisation",
        "head",
        models.ForeignKey(
            "accounts.User", models.PROTECT, null=True, db_index=False, related_name="+"
        ),
    ),
    "an index beside the writers": AddIndexConcurrently("organisation", INDEX),
    "a column that may be empty from now on": migrations.AlterField(
        "organisation", "slug", models.SlugField(max_length=140, unique=True, null=True)
    ),
    "a column that only the code forgets": migrations.SeparateDatabaseAndState(
        state_operations=[migrations.RemoveField("organisation", "retain_days")]
    ),
    "a table of its own": migrations.CreateModel(
        "Colour",
        [
            ("id", models.BigAutoField(primary_key=True)),
            ("name", models.CharField(max_length=9, unique=True, db_index=True)),
            ("owner", models.ForeignKey("accounts.Organisation", models.PROTECT)),
        ],
        options={
            "indexes": [models.Index(fields=["name"], name="made_up")],
            "constraints": [
                models.CheckConstraint(condition=~models.Q(name=""), name="made_up_named")
            ],
        },
    ),
    "rows filled by Python": migrations.RunPython(_fill, _unfill, elidable=True),
}


@pytest.mark.parametrize("operation", ALLOWED.values(), ids=ALLOWED)
def test_allowed_is(loader, operation: Operation) -> None:
    assert _judge(loader, operation, atomic=False) == []


def test_an_index_is_removed_beside_the_writers(loader) -> None:
    removal = RemoveIndexConcurrently("organisation", "made_up")
    assert _judge(loader, AddIndexConcurrently("organisation", INDEX), removal, atomic=False) == []


def test_a_default_of_one_column_excuses_no_other(loader) -> None:
    assert _judge(loader, _add(default=0), _add("size", db_default=0)) == ["NOT_NULL"]
    empty, full = "ADD a int NOT NULL", "ADD b int DEFAULT 0 NOT NULL"
    assert _judge(loader, _sql(f"ALTER TABLE {TABLE} {empty}; ALTER TABLE {TABLE} {full}")) == [
        "NOT_NULL"
    ]
    assert _judge(loader, _sql(f"ALTER TABLE {TABLE} {empty}, {full}")) == ["SEVERAL_ACTIONS"]


def test_a_reason_waives_one_refusal_and_nothing_else(loader) -> None:
    drop = migrations.RemoveField("organisation", "slug")
    reason = "Release 1.2 neither reads nor writes it."
    assert _judge(loader, drop, waivers={"DROP_COLUMN": reason}) == []
    assert _judge(loader, drop, _add(default=0), waivers={"DROP_COLUMN": reason}) == ["NOT_NULL"]
    assert _judge(loader, drop, waivers={"DROP_COLUMN": " "}) == ["WAIVER DROP_COLUMN"]
    assert _judge(loader, _add(null=True), waivers={"DROP_COLUMN": reason}) == [
        "WAIVER DROP_COLUMN"
    ]


@pytest.mark.django_db(transaction=True)
def test_tables_are_changed_by_a_session_that_soon_stops_waiting(monkeypatch) -> None:
    seen: list[str] = []

    def show(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            seen.append(cursor.fetchone()[0])

    monkeypatch.setattr(migrate.Command, "handle", show)
    # Put back at the end, for the tests after this one.
    monkeypatch.setitem(connection.settings_dict, "SESSION_SETTINGS", {})
    call_command("migrate", verbosity=0, check_unapplied=True, stdout=StringIO())
    connection.close()
    assert seen == ["5s"]
