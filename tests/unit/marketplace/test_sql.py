"""Where SQL stands: an app's own in ``queries.py`` and ``locks.py``, over its own tables only.

Import contracts cannot see a table's name in a text; this reads every text of every module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps

MARKETPLACE = Path(__file__).parents[3] / "marketplace"
TABLES = {
    model._meta.db_table: model._meta.app_label
    for model in apps.get_models(include_auto_created=True)
    if (MARKETPLACE / model._meta.app_label).is_dir()
}
#: Modules that may hold SQL over tables, and a folder of such: triggers are part of models.
HOMES = {"queries.py", "locks.py", "models.py"}
MODELS = "models"
SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|FROM|JOIN)\b")
#: Pieces of SQL that name no table, such as templates of expressions.
FRAGMENT = re.compile(r"::(bigint|float8|int|text|timestamptz|jsonb)\b|\bjsonb_\w+\(")
LOCKING = re.compile(r"\bFOR (NO KEY )?(UPDATE|SHARE)\b")


def list_modules() -> list[Path]:
    found = [p for p in MARKETPLACE.rglob("*.py") if "migrations" not in p.parts]
    assert len(found) > 150
    return found


def read_texts(module: Path) -> Iterator[str]:
    """Every text of a module, the parts of formatted ones joined; docstrings left out."""
    tree = ast.parse(module.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    passed_over = docstrings | {id(part) for node in joined for part in node.values}
    for node in joined:
        parts = [p.value if isinstance(p, ast.Constant) else "?" for p in node.values]
        yield "".join(str(part) for part in parts)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in passed_over
        ):
            yield node.value


def find_tables(text: str) -> set[str]:
    """The tables that a text of SQL names."""
    return set(re.findall(r"[a-z_]+", text)) & TABLES.keys() if SQL.search(text) else set()


def is_home(module: Path) -> bool:
    return module.name in HOMES or module.parent.name == MODELS


def find_faults(module: Path, app: str) -> list[str]:
    faults = []
    for text in read_texts(module):
        tables = find_tables(text)
        foreign = sorted(table for table in tables if TABLES[table] != app)
        if foreign:
            faults.append(f"{app} asks for {', '.join(foreign)}, tables of another app")
        if tables and not is_home(module):
            faults.append(f"SQL over {', '.join(sorted(tables))} outside queries.py")
        # What pipelines and locks are made of belongs to no app.
        if app != "common" and FRAGMENT.search(text) and not is_home(module):
            faults.append("SQL without a table outside queries.py")
        if LOCKING.search(text) and module.name != "locks.py":
            faults.append("rows are locked outside locks.py")
    if module.name != "locks.py" and "select_for_update" in module.read_text():
        faults.append("rows are locked outside locks.py")
    return faults


@pytest.mark.parametrize("app", sorted(p.name for p in MARKETPLACE.iterdir() if p.is_dir()))
def test_an_apps_sql_stands_in_its_own_rooms_over_its_own_tables(app: str) -> None:
    modules = [module for module in list_modules() if module.is_relative_to(MARKETPLACE / app)]
    faults = {str(module): found for module in modules if (found := find_faults(module, app))}
    assert faults == {}


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("queries.py", 'A = "SELECT id FROM jobs_job"', "tables of another app"),
        ("queries.py", 'A = f"SELECT {x} FROM fleet_node"', "tables of another app"),
        ("services.py", 'A = "SELECT id FROM auction_bid"', "outside queries.py"),
        ("cells.py", 'A = "(%(expressions)s -> 0 ->> 0)::bigint"', "SQL without a table outside"),
        ("cells.py", 'A = "jsonb_array_length(cells)"', "SQL without a table outside"),
        ("queries.py", 'A = "SELECT id FROM auction_bid FOR UPDATE"', "outside locks.py"),
        ("services.py", "Bid.objects.select_for_update()", "outside locks.py"),
    ],
)
def test_the_check_sees_what_it_is_for(tmp_path: Path, name: str, source: str, fault: str) -> None:
    module = tmp_path / name
    module.write_text(source)
    [found] = find_faults(module, "auction")
    assert fault in found


def test_a_statement_over_own_tables_in_its_place_is_no_fault(tmp_path: Path) -> None:
    module = tmp_path / "queries.py"
    module.write_text('"""Reads jobs_job FROM far."""\nA = "SELECT id FROM auction_bid"')
    assert find_faults(module, "auction") == []


def test_every_app_is_looked_at() -> None:
    looked_at = {module.relative_to(MARKETPLACE).parts[0] for module in list_modules()}
    assert {"tiers", "auction", "jobs", "fleet", "payments"} <= looked_at
    assert any(TABLES[table] == "tiers" for table in TABLES)
