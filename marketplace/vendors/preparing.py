"""The automatic vendor's work in a process of its own, with an end to its time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from marketplace.common.errors import MarketFault, UserError
from marketplace.vendors.wishes import PreparationWish

#: The largest file that may be uploaded takes a few minutes.
CPU_S = 300
WALL_S = 600.0
MEMORY_BYTES = 4 * 1024**3
#: A report before a bid looks at the first rows only.
INSPECTION_CPU_S = 60
INSPECTION_WALL_S = 180.0
_ROOT = Path(__file__).parents[2]
#: What the process needs of our environment, which holds the market's secrets.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
#: How the command ends when the file cannot be used.
_UNUSABLE = 1
_WORDS_MAX = 300


def prepare_in_process(
    path: Path, *, folder: Path, wish: PreparationWish, cpu_s: int = CPU_S, wall_s: float = WALL_S
) -> dict[str, Any]:
    """Prepare a file into ``folder``, which must not exist; give the vendor's summary.

    Raises
    ------
    UserError
        ``unusable_data``: the file cannot be prepared, or takes more time or memory than it may.
    MarketFault
        The process failed by itself.
    """
    options = ["--out", str(folder), "--validation-share", str(wish.validation_share)]
    if not wish.drop_duplicates:
        options.append("--keep-duplicates")
    if wish.mask_personal_data:
        options.append("--mask")
    if wish.languages:
        options += ["--languages", ",".join(wish.languages)]
    return _run(path, options, cpu_s=cpu_s, wall_s=wall_s)


def finish_in_process(path: Path, *, folder: Path, wish: PreparationWish) -> dict[str, Any]:
    """Leave out repetitions in rows that people or others delivered, and set rows aside.

    Texts stay as they were delivered. Raises as ``prepare_in_process``.
    """
    options = ["--out", str(folder), "--validation-share", str(wish.validation_share)]
    options.append("--keep-format")
    if not wish.drop_duplicates:
        options.append("--keep-duplicates")
    return _run(path, options, cpu_s=CPU_S, wall_s=WALL_S)


def list_rows_in_process(path: Path, *, rows: Path, masks: bool) -> None:
    """Write every row with a proposal to a file, a JSON object a line, for people.

    Raises as ``prepare_in_process``.
    """
    options = ["--rows", str(rows), *(["--mask"] if masks else [])]
    _run(path, options, cpu_s=CPU_S, wall_s=WALL_S)


def mask_in_process(path: Path, *, copy: Path) -> None:
    """Copy the rows of a file with personal data replaced; raises as ``prepare_in_process``."""
    _run(path, ["--masked", str(copy)], cpu_s=CPU_S, wall_s=WALL_S)


def compare_in_process(path: Path, *, delivered: Path, masks: bool) -> dict[str, Any]:
    """``workers.preparation.Comparison`` of a raw and a delivered file, as JSON.

    Raises as ``prepare_in_process``.
    """
    options = ["--compare", str(delivered), *(["--mask"] if masks else [])]
    return _run(path, options, cpu_s=CPU_S, wall_s=WALL_S)


def inspect_in_process(path: Path) -> dict[str, Any]:
    """What a preparation would find in a file, counted.

    Raises
    ------
    UserError, MarketFault
        As ``prepare_in_process``.
    """
    return _run(path, [], cpu_s=INSPECTION_CPU_S, wall_s=INSPECTION_WALL_S)


def _run(path: Path, options: list[str], *, cpu_s: int, wall_s: float) -> dict[str, Any]:
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
