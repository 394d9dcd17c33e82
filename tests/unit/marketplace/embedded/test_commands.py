"""``manage.py`` finds the embedded servers by itself, whether their market runs or not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psycopg
import pytest

from marketplace.embedded.commands import find_servers
from marketplace.embedded.house import ENVIRONMENT
from marketplace.embedded.stack import hold_directory


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch) -> Path:
    """The directory of a market that ran before; the environment names no servers."""
    unnamed = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "PUBLIC_URL"}
    environment = {name: value for name, value in os.environ.items() if name not in unnamed}
    monkeypatch.setattr(os, "environ", environment | {"DATA_DIR": str(tmp_path)})
    known = {
        "DATABASE_URL": "postgresql://as-it-was",
        "REDIS_URL": "redis://as-it-was",
        "SECRET_KEY": "the market's own",
    }
    (tmp_path / ENVIRONMENT).write_text(json.dumps(known))
    return tmp_path


def test_servers_that_do_not_run_are_started_for_as_long_as_the_command_takes(
    data_dir: Path,
) -> None:
    with find_servers(["ledger_check"]):
        url = os.environ["DATABASE_URL"]
        assert os.environ["SECRET_KEY"] == "the market's own"
        assert os.environ["REDIS_URL"].startswith("redis://:")
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_a_market_that_runs_is_asked_as_it_is(data_dir: Path) -> None:
    with hold_directory(data_dir), find_servers(["auction_verify"]):
        assert os.environ["DATABASE_URL"] == "postgresql://as-it-was"
        assert os.environ["REDIS_URL"] == "redis://as-it-was"
    assert not (data_dir / "postgres").exists()


def test_servers_that_are_named_are_left_alone(data_dir: Path) -> None:
    os.environ["DATABASE_URL"] = "postgresql://named"
    with find_servers(["ledger_check"]):
        assert os.environ["DATABASE_URL"] == "postgresql://named"
        assert "REDIS_URL" not in os.environ
    assert not (data_dir / "postgres").exists()


@pytest.mark.parametrize("arguments", [[], ["--version"], ["help"], ["collectstatic"]])
def test_a_command_that_needs_no_database_starts_none(data_dir: Path, arguments) -> None:
    with find_servers(arguments):
        assert "DATABASE_URL" not in os.environ
    assert not (data_dir / "postgres").exists()


def test_without_an_embedded_market_nothing_happens(data_dir: Path) -> None:
    (data_dir / ENVIRONMENT).unlink()
    with find_servers(["ledger_check"]):
        assert "DATABASE_URL" not in os.environ
    assert not (data_dir / "stack.lock").exists()
