"""The automatic vendor's work in a process of its own, with an end to its time and memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marketplace.jobs.repairing import CPU_S, WALL_S, run_preparation
from marketplace.vendors.skills import Skill
from workers.protocol.job_terms import PreparationWish

#: A report before a bid looks at the first rows only.
INSPECTION_CPU_S = 60
INSPECTION_WALL_S = 180.0


def prepare_in_process(
    path: Path,
    *,
    folder: Path,
    wish: PreparationWish,
    tokenizer: Path | None = None,
) -> dict[str, Any]:
    """Prepare a file into ``folder``, which must not exist; the ``PreparationPlan`` as JSON.

    Parameters
    ----------
    tokenizer
        ``tokenizer.json`` that the plan's tokens are counted by.

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
    if wish.languages:
        options += ["--languages", ",".join(wish.languages)]
    if tokenizer is not None:
        options += ["--tokenizer", str(tokenizer)]
    return run_preparation(path, [*options, *_read_as(wish)], cpu_s=CPU_S, wall_s=WALL_S)


def _read_as(wish: PreparationWish) -> list[str]:
    """How the owner's rows are read, whoever works on them."""
    mask = ["--mask"] if wish.mask_personal_data else []
    if mask and wish.phone_regions:
        mask += ["--phone-regions", ",".join(wish.phone_regions)]
    return [*mask, "--roles", json.dumps(wish.roles)]


def finish_in_process(path: Path, *, folder: Path, wish: PreparationWish) -> dict[str, Any]:
    """Leave out repetitions in rows that people or others delivered, and set rows aside.

    Texts stay as they were delivered, without their ids. Raises as ``prepare_in_process``.
    """
    options = ["--out", str(folder), "--validation-share", str(wish.validation_share)]
    options += ["--keep-format", "--row-ids"]
    if not wish.drop_duplicates:
        options.append("--keep-duplicates")
    return run_preparation(path, options)


def list_rows_in_process(path: Path, *, rows: Path, wish: PreparationWish) -> None:
    """Write every row with a proposal to a file, a JSON object a line, for people.

    Raises as ``prepare_in_process``.
    """
    run_preparation(path, ["--rows", str(rows), *_read_as(wish)])


def trace_in_process(path: Path, *, copy: Path, wish: PreparationWish) -> None:
    """Copy the rows of a file, each with its id; raises as ``prepare_in_process``."""
    run_preparation(path, ["--traced", str(copy), *_read_as(wish)])


def compare_in_process(path: Path, *, delivered: Path, wish: PreparationWish) -> dict[str, Any]:
    """``workers.preparation.comparing.Comparison`` of a raw and a delivered file, as JSON.

    The delivered rows bring their ids. Raises as ``prepare_in_process``.
    """
    options = ["--compare", str(delivered), *_read_as(wish)]
    if Skill.TRANSLATION in wish.skills:
        options.append("--translated")
    if wish.gold:
        known = delivered.with_name("gold.jsonl")
        rows = (json.loads(row) | {"row_id": int(number)} for number, row in wish.gold.items())
        known.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        options += ["--gold", str(known)]
        if Skill.LABELLING in wish.skills:
            options.append("--gold-exact")
    return run_preparation(path, options)


def inspect_in_process(path: Path, *, roles: Mapping[str, str]) -> dict[str, Any]:
    """What a preparation would find in a file, counted.

    Raises
    ------
    UserError, MarketFault
        As ``prepare_in_process``.
    """
    options = ["--roles", json.dumps(dict(roles))]
    return run_preparation(path, options, cpu_s=INSPECTION_CPU_S, wall_s=INSPECTION_WALL_S)
