"""The program that prepares data, in a process of its own, with an end to its time and memory.

The automatic vendor's work is done with it. Here it says what rows there are in a file that cannot
be trained on as it is: a price is counted from them before any vendor has the file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from marketplace.common.errors import MarketFault, UserError

#: The largest file that may be uploaded takes a few minutes.
CPU_S = 300
WALL_S = 600.0
#: A price is counted from what is repaired within this.
REPAIR_WALL_S = 240.0
MEMORY_BYTES = 4 * 1024**3
_ROOT = Path(__file__).parents[2]
#: What the process needs of our environment, which holds the market's secrets.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
#: How the command ends when the file cannot be used.
_UNUSABLE = 1
_WORDS_MAX = 300


def run_preparation(
    path: Path, options: list[str], *, cpu_s: int = CPU_S, wall_s: float = WALL_S
) -> dict[str, Any]:
    """Run ``python -m workers prepare`` on a file; what it printed.

    Raises
    ------
    UserError
        ``unusable_data``: the file cannot be prepared, or takes more time or memory than it may.
    MarketFault
        The process failed by itself.
    """
    limits = ["--cpu-s", str(cpu_s), "--memory-bytes", str(MEMORY_BYTES)]
    try:
        done = subprocess.run(
            (sys.executable, "-m", "workers", "prepare", str(path), *options, *limits),
            cwd=_ROOT,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            capture_output=True,
            text=True,
            timeout=wall_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _too_complex() from None
    if done.returncode == 0:
        return json.loads(done.stdout)
    if done.returncode == _UNUSABLE and "Traceback" not in done.stderr:
        raise UserError("unusable_data", done.stderr.strip()[:_WORDS_MAX], param="file")
    if done.returncode < 0 or "MemoryError" in done.stderr:
        raise _too_complex()
    raise MarketFault(f"preparing {path} ended with {done.returncode}: {done.stderr[-2000:]}")


def _too_complex() -> UserError:
    return UserError(
        "unusable_data",
        "The file could not be prepared within the time and memory for one of its size. Split it.",
        param="file",
    )


@contextmanager
def open_repaired(stored: IO[bytes], *, roles: Mapping[str, str]) -> Iterator[tuple[Path, int]]:
    """The rows of a file as the program repairs them, copies of others included.

    ``roles`` say what columns hold, as their owner knows it. Gives a file that is gone after the
    block, and how many rows it leaves out: beyond repair, too short or repetitive. Raises as
    ``run_preparation``.
    """
    with tempfile.TemporaryDirectory(prefix="repaired-") as name:
        raw, out = Path(name) / "raw", Path(name) / "out"
        with raw.open("wb") as copy:
            shutil.copyfileobj(stored, copy, 1024 * 1024)
        options = ["--out", str(out), "--keep-duplicates", "--roles", json.dumps(dict(roles))]
        summary = run_preparation(raw, options, wall_s=REPAIR_WALL_S)["summary"]
        yield out / "train.jsonl", summary["rows_in"] - summary["rows_out"]
