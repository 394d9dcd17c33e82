"""A market goes on from a backup that is older, or newer, than what was archived."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command

from marketplace.auction.book import engine_cache as books
from marketplace.auction.book import log_archiving
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import LogEntry, LogSegment
from marketplace.auction.settlement import settle_finished
from marketplace.auction.witnesses.heads import sign_heads
from marketplace.jobs.models import EventFile, JobEvent
from marketplace.payments.closed_months import close_month
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.unit.marketplace.config.test_backups import ROOT, empty_database, restore
from tests.warm_builders import finished, live_node

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = ("auction_logentry", "auction_logsegment", "jobs_jobevent", "jobs_eventfile")
GOOD = "the books balance and every log verifies"


@pytest.fixture
def old_market(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log and, of another zone, a job's events, both of a closed month; the folder of files."""
    settings.MEDIA_ROOT = tmp_path / "data" / "media"
    settings.MARKET_KEY_DIR = tmp_path / "data" / "keys"
    monkeypatch.setattr(books, "SNAPSHOT_AT_LATEST", 3)
    monkeypatch.setattr(log_archiving, "ENTRIES_OF_SEGMENT", 8)
    sold, zone, owner = market.zone(), market.zone(), builders.organisation(usd="10")
    live_node(sold)
    market.node(zone)
    finished(owner, sold)
    settled_at = NOW + timedelta(seconds=60)
    assert settle_finished(now=settled_at) == 1
    for batch in range(8):
        now = settled_at + timedelta(seconds=batch)
        for _ in range(2):
            market.bid(owner, zone, price_micros=1, now=now)
        decide_pending_bids(zone=zone, now=now)
        sign_heads(now=now)
    later = NOW + timedelta(days=100)
    close_month(month=f"{NOW:%Y-%m}", closed_by=builders.operator(), now=later)
    return tmp_path / "data"


def archive() -> None:
    call_command("archive")


def count_here() -> tuple[int, ...]:
    models = (LogEntry, LogSegment, JobEvent, EventFile)
    return tuple(model._default_manager.count() for model in models)


def count_there(database: str) -> tuple[int, ...]:
    with psycopg.connect(database) as restored:
        found = [restored.execute(f"SELECT count(*) FROM {name}").fetchone() for name in TABLES]
    return tuple(row[0] for row in found if row is not None)


def manage(*words: str, database: str, data: Path) -> subprocess.CompletedProcess[str]:
    environment = {"DATABASE_URL": database, "DATA_DIR": str(data), "PYTHONPATH": str(ROOT)}
    environment |= {"DJANGO_SETTINGS_MODULE": "marketplace.config.settings.dev"}
    return subprocess.run(
        [sys.executable, "-m", "django", *words],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_backup_that_is_newer_than_an_archive_has_its_files(
    old_market: Path, tmp_path: Path
) -> None:
    archive()
    entries, segments, events, files = count_here()
    assert (segments > 0, events, files) == (True, 0, 1)
    call_command("backup", str(tmp_path / "backup"))
    with empty_database() as database:
        other = tmp_path / "elsewhere"
        done = restore(tmp_path / "backup", database=database, data=other)
        assert done.returncode == 0, done.stdout + done.stderr
        assert GOOD in done.stdout
        # Both logs say that they were put back.
        assert count_there(database) == (entries + 2, segments, 0, 1)
        kept = sorted(path.name for path in (other / "media" / "archive").rglob("*.xz"))
        assert len(kept) == segments + files
        assert kept == sorted(path.name for path in (old_market / "media").rglob("*.xz"))
    lost = sorted((tmp_path / "backup").rglob("archive/log/**/*.xz"))[0]
    lost.unlink()
    with empty_database() as database:
        done = restore(tmp_path / "backup", database=database, data=tmp_path / "a third")
        assert done.returncode != 0
        assert lost.name in done.stdout + done.stderr


def test_a_backup_that_is_older_than_an_archive_goes_back_before_it(
    old_market: Path, tmp_path: Path
) -> None:
    before = count_here()
    assert (before[1], before[3]) == (0, 0)
    call_command("backup", str(tmp_path / "backup"))
    archive()
    assert count_here()[0] < before[0]
    with empty_database() as database:
        other = tmp_path / "elsewhere"
        done = restore(tmp_path / "backup", database=database, data=other)
        assert done.returncode == 0, done.stdout + done.stderr
        assert GOOD in done.stdout
        assert count_there(database) == (before[0] + 2, 0, before[2], 0)
        # Files of the lost run are there, as in a bucket, and no row names them.
        shutil.copytree(old_market / "media" / "archive", other / "media" / "archive")
        address = {"database": database, "data": other}
        archived = manage("archive", **address)
        assert archived.returncode == 0, archived.stdout + archived.stderr
        entries, segments, events, files = count_there(database)
        assert (entries < before[0], segments > 0, events, files) == (True, True, 0, 1)
        verified = manage("auction_verify", **address)
        assert verified.returncode == 0, verified.stdout + verified.stderr
