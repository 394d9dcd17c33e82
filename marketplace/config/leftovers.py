"""Directories named after the process that made them: ``...-<process id>``."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Remove the directories of processes that were killed before they could do so themselves."""
    for path in folder.glob(pattern):
        pid = path.name.rpartition("-")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)
