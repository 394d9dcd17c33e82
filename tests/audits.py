"""An audit from outside: rows altered behind the application's back, transcripts replayed alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from django.db import connection


def alter_row(sql: str, *parameters: object) -> None:
    """Change or delete one row with its triggers off, as one who owns the database could."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql, parameters)
        assert cursor.rowcount == 1
        cursor.execute("SET LOCAL session_replication_role = origin")


def replay_transcript(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Replay a transcript as anybody can: in a process of its own, without a database."""
    return subprocess.run(
        [sys.executable, "-m", "scheduler", "verify", str(path), *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
