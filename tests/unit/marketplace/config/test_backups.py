"""A market is backed up while it runs, and put back somewhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import MarketKey
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.config.backups import (
    MANIFEST,
    _find_program,
    make_backup,
    read_manifest,
    restore_backup,
)
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.restores import hold_gateway
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parents[4]


@pytest.fixture
def sold(settings, tmp_path):
    """A market with a job that was sold and done, its files below a folder of its own."""
    settings.MEDIA_ROOT = tmp_path / "data" / "media"
    zone = market.zone()
    market.node(zone)
    owner = builders.organisation(usd="10")
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    dispatch_slots(now=market.slot_at(zone, 101))
    job = Job.objects.get(bid_id=bid.pk)
    market.end_slice(job, status=SliceEnd.FINISHED, now=NOW + timedelta(seconds=20))
    return job


@contextmanager
def empty_database():
    """A database of the same server with nothing in it; its address."""
    name = f"restored_{os.getpid()}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {name}")
        server.execute(f"CREATE DATABASE {name}")
    try:
        parts = urlsplit(os.environ["DATABASE_URL"])
        yield urlunsplit(parts._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def restore(folder: Path, *, database: str, data: Path, **changed: str):
    """``manage.py restore`` as an operator runs it on another machine."""
    environment = os.environ | {
        "DATABASE_URL": database,
        "DATA_DIR": str(data),
        "DJANGO_SETTINGS_MODULE": "marketplace.config.settings.dev",
        "SECRET_KEY": settings.SECRET_KEY,
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, "-m", "django", "restore", str(folder)],
        env=environment | changed,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_backup_is_put_back_elsewhere_with_books_logs_and_files(sold, tmp_path):
    artifact = Artifact.objects.get()
    folder = tmp_path / "backup"
    call_command("backup", str(folder))
    made = read_manifest(folder)
    assert made.missing == []
    assert made.rows["jobs_job"] == 1
    with empty_database() as database:
        other = tmp_path / "elsewhere"
        refused = restore(folder, database=database, data=other, SECRET_KEY="another" * 12)
        assert "SECRET_KEY is not the one" in refused.stderr
        done = restore(folder, database=database, data=other)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "the books balance and every log verifies" in done.stdout
        assert "Heads of the ledger: Those named $ledger that were signed between" in done.stdout
        with psycopg.connect(database) as restored:
            [row] = restored.execute("SELECT id, status FROM jobs_job").fetchall()
            assert row == (sold.pk, "succeeded")
            # The log itself says what became of entries that others have heads of.
            [(position, event)] = restored.execute(
                "SELECT position, event FROM auction_logentry ORDER BY position DESC LIMIT 1"
            ).fetchall()
            [head] = made.heads.values()
            [(held_at,)] = restored.execute("SELECT held_at FROM payments_gatewaycomparison")
            assert held_at > datetime.fromisoformat(made.made_at)
            said = json.loads(event)
            assert (position, said["type"]) == (head[0] + 1, "LogRestored")
            assert said["backed_up_at"] == made.made_at
        assert (other / "media" / artifact.file.name).read_bytes() == b"zip"
        again = restore(folder, database=database, data=other)
        assert "The database has tables" in again.stderr


def test_a_restore_may_compute_for_long_between_two_looks_at_a_log(sold, monkeypatch):
    """A new machine compiles the auction first, which took longer than a transaction may rest."""

    def show(_zone, _since=None):
        with connection.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            return cursor.fetchone()

    monkeypatch.setattr("marketplace.auction.book.verify._verify", show)
    assert verify_zone(sold.zone) == ("0",)
    assert show(sold.zone) == ("2min",)


def test_a_machine_whose_clock_is_behind_the_backup_refuses_it(sold, tmp_path):
    made = make_backup(tmp_path / "backup", now=NOW)
    with pytest.raises(UserError, match="Set it first"):
        restore_backup(tmp_path / "backup", now=NOW - timedelta(seconds=1))
    assert made.made_at == NOW.isoformat()


def test_a_backup_that_is_not_whole_is_none(sold, tmp_path):
    folder = tmp_path / "backup"
    make_backup(folder, now=clock.now())
    with pytest.raises(UserError, match="exists"):
        make_backup(folder, now=clock.now())
    (folder / MANIFEST).unlink()
    with pytest.raises(CommandError, match="no whole backup"):
        call_command("restore", str(folder))


def test_a_file_that_is_named_and_gone_is_told(sold, tmp_path):
    artifact = Artifact.objects.get()
    artifact.file.storage.delete(artifact.file.name)
    made = make_backup(tmp_path / "backup", now=clock.now())
    assert made.missing == [artifact.file.name]


def test_a_dump_that_fails_leaves_no_backup(sold, tmp_path, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "NAME", "no_such_database")
    with pytest.raises(UserError, match="pg_dump"):
        make_backup(tmp_path / "backup", now=clock.now())
    assert not (tmp_path / "backup").exists()


def test_a_backup_without_the_markets_key_is_refused_before_anything_is_written(
    sold, settings, tmp_path
):
    # As in the container of the web server, which has no private key.
    settings.MARKET_KEY_DIR = tmp_path / "no-keys"
    MarketKey.objects.create(public_key="ab" * 32, created_at=NOW)
    with pytest.raises(UserError, match=r"is not in .*no-keys,") as refused:
        make_backup(tmp_path / "backup", now=NOW)
    assert refused.value.code == "backup_failed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_the_newest_of_the_servers_own_programs_is_used(monkeypatch, tmp_path):
    for folder in ("pginstall18", "pginstall9", "pginstall"):
        (tmp_path / folder / "bin").mkdir(parents=True)
        (tmp_path / folder / "bin" / "pg_dump").touch()
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("marketplace.config.backups.find_spec", lambda _: spec)
    assert _find_program("pg_dump") == str(tmp_path / "pginstall18" / "bin" / "pg_dump")
    assert _find_program("pg_restore") == "pg_restore"


def test_the_doctor_names_what_does_not_work(capsys):
    with pytest.raises(CommandError, match="do not work"):
        call_command("doctor")
    said = capsys.readouterr().out
    assert "ok   Tables: are of this version" in said
    assert "BAD  Clock: Nothing runs by the clock: start beat." in said


def test_the_doctor_says_which_heads_of_the_ledger_a_restore_lost(capsys):
    def look():
        with pytest.raises(CommandError):
            call_command("doctor")
        said = capsys.readouterr().out.splitlines()
        return [line for line in said if "Heads of the ledger" in line]

    assert look() == []
    hold_gateway(backed_up_at=NOW, now=NOW + timedelta(hours=2))
    # A second restore, from a later backup, does not forget the first.
    hold_gateway(backed_up_at=NOW + timedelta(hours=1), now=NOW + timedelta(hours=3))
    [line] = look()
    since, until = (f"{NOW + timedelta(hours=h):%Y-%m-%d %H:%M:%S}" for h in (0, 3))
    assert line.startswith(
        f"ok   Heads of the ledger: Those named $ledger that were signed between {since} and "
        f"{until} UTC are of seals that a restore has lost"
    )


def test_the_manifest_is_plain_json(sold, tmp_path):
    make_backup(tmp_path / "backup", now=NOW)
    value = json.loads((tmp_path / "backup" / MANIFEST).read_text())
    assert value["made_at"] == NOW.isoformat()
