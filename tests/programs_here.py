"""The programs that read other people's files, run in the tests' own process.

The market starts each in a process of its own, which takes longer than most tests.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from marketplace.jobs import reading_child, reading_process, repairing
from marketplace.jobs.dataset_reader import Reading
from marketplace.jobs.reading_process import FileToRead, build_request
from marketplace.jobs.services import readings
from marketplace.vendors import deliveries
from workers.preparation import command

#: At the end of a command: its limits, which would be those of the tests.
_LIMITS = 4


def run_programs_here(patch: pytest.MonkeyPatch) -> None:
    """Start no processes from now on."""
    here = SimpleNamespace(run=_prepare, TimeoutExpired=subprocess.TimeoutExpired)
    patch.setattr(repairing, "subprocess", here)
    patch.setattr(reading_child, "_say", _say_nothing)
    for module in (readings, deliveries):
        patch.setattr(module, "read_in_process", _read)


def run_programs_apart(patch: pytest.MonkeyPatch) -> None:
    """Start them as the market does."""
    patch.setattr(repairing, "subprocess", subprocess)
    for module in (readings, deliveries):
        patch.setattr(module, "read_in_process", reading_process.read_in_process)


def _read(file: FileToRead, **_: Any) -> tuple[Reading, bool]:
    return reading_child.read_file(build_request(file))


def _say_nothing(**_: Any) -> None:
    """How far a reading is, is what the process says on its standard output."""


def _prepare(words: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
    assert words[1:4] == ("-m", "workers", "prepare")
    said, complained = StringIO(), StringIO()
    with redirect_stdout(said), redirect_stderr(complained):
        status = command.main(list(words[4:-_LIMITS]))
    return subprocess.CompletedProcess(words, status, said.getvalue(), complained.getvalue())
