"""The automatic vendor's work in a process of its own, with an end to its time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marketplace.jobs.repairing import CPU_S, WALL_S, run_preparation
from marketplace.vendors.skills import Skill
from workers.protocol.job_terms import PreparationWish

#: A report before a bid looks at the first rows only.
INSPECTION_CPU_S = 60
INSPECTION_WALL_S = 180.0


def prepare_in_process(
    path: Path, *, folder: Path, wish: PreparationWish, cpu_s: int = CPU_S, wall_s: float = WALL_S
) -> dict[str, Any]:
    """Prepare a file into ``folder``, which must not exist; the ``PreparationPlan`` as JSON.

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
    return run_preparation(path, options, cpu_s=cpu_s, wall_s=wall_s)


def finish_in_process(path: Path, *, folder: Path, wish: PreparationWish) -> dict[str, Any]:
    """Leave out repetitions in rows that people or others delivered, and set rows aside.

    Texts stay as they were delivered. Raises as ``prepare_in_process``.
    """
    options = ["--out", str(folder), "--validation-share", str(wish.validation_share)]
    options.append("--keep-format")
    if not wish.drop_duplicates:
        options.append("--keep-duplicates")
    return run_preparation(path, options)


def list_rows_in_process(path: Path, *, rows: Path, masks: bool) -> None:
    """Write every row with a proposal to a file, a JSON object a line, for people.

    Raises as ``prepare_in_process``.
    """
    options = ["--rows", str(rows), *(["--mask"] if masks else [])]
    run_preparation(path, options)


def mask_in_process(path: Path, *, copy: Path) -> None:
    """Copy the rows of a file with personal data replaced; raises as ``prepare_in_process``."""
    run_preparation(path, ["--masked", str(copy)])


def compare_in_process(path: Path, *, delivered: Path, wish: PreparationWish) -> dict[str, Any]:
    """``workers.preparation.comparing.Comparison`` of a raw and a delivered file, as JSON.

    Raises as ``prepare_in_process``.
    """
    options = ["--compare", str(delivered)]
    if wish.mask_personal_data:
        options.append("--mask")
    if Skill.TRANSLATION in wish.skills:
        options.append("--translated")
    return run_preparation(path, options)


def inspect_in_process(path: Path) -> dict[str, Any]:
    """What a preparation would find in a file, counted.

    Raises
    ------
    UserError, MarketFault
        As ``prepare_in_process``.
    """
    return run_preparation(path, [], cpu_s=INSPECTION_CPU_S, wall_s=INSPECTION_WALL_S)
