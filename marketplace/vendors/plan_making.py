"""Making plans, as durable work: the program does to a copy what it would do to the data."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from marketplace.common.durable.kinds import Failure, HeldWork, WorkFailed
from marketplace.common.errors import UserError
from marketplace.fleet.selectors import find_zone_tokenizer
from marketplace.jobs.dataset_reader import Reading
from marketplace.vendors.deliveries import copy_file, read_rows
from marketplace.vendors.locks import lock_plan
from marketplace.vendors.models import DataPlan
from marketplace.vendors.preparing import prepare_in_process
from marketplace.vendors.wishes import parse_wish


@dataclass(frozen=True, slots=True)
class MadePlan:
    """``workers.preparation.PreparationPlan`` as JSON, and what was read of its rows."""

    plan: dict[str, Any]
    #: ``None`` where no row stays.
    reading: Reading | None
    runs: bytes


def load_plan(work: HeldWork) -> DataPlan | None:
    """The plan to be made, while there is none."""
    waiting = DataPlan.objects.filter(pk=work.key, plan__isnull=True, problem="")
    waiting = waiting.filter(dataset__deleted_at=None)
    return waiting.select_related("dataset", "zone").first()


def make_plan(_work: HeldWork, plan: DataPlan) -> MadePlan:
    """Prepare a copy of the data set, and count what training would read of it.

    Raises
    ------
    WorkFailed
        The file cannot be prepared within its time, or training cannot read what stays.
    """
    wish = replace(parse_wish(plan.asked), validation_share=0.0)
    tokenizer = find_zone_tokenizer(plan.zone)
    with tempfile.TemporaryDirectory(prefix="plan-") as name:
        folder = Path(name)
        copy_file(plan.dataset.file, folder / "raw")
        try:
            made = prepare_in_process(
                folder / "raw",
                folder=folder / "out",
                wish=wish,
                tokenizer=None if tokenizer is None else tokenizer.tokenizer,
            )
            if not made["summary"]["rows_out"]:
                return MadePlan(made, None, b"")
            rows = folder / "out" / "train.jsonl"
            reading, runs = read_rows(rows, plan.zone, limit_bytes=rows.stat().st_size)
        except UserError as refusal:
            raise WorkFailed(refusal.message, is_final=True) from refusal
    return MadePlan(made, reading, runs)


def store_plan(_work: HeldWork, plan: DataPlan, made: MadePlan, *, now: datetime) -> None:
    """Show the plan to the owner."""
    # Its data set may have been erased meanwhile, and the plan with it.
    if lock_plan(plan.pk) is None:
        return
    plan.plan = made.plan
    if made.reading is not None:
        plan.rows, plan.tokens = made.reading.rows, made.reading.tokens
        plan.longest_row_tokens = made.reading.longest_row_tokens
        plan.format, plan.runs = made.reading.format or "", made.runs
    plan.save()


def fail_plan(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """Say why there is no plan, once nothing more is tried."""
    if failure.retry_at is None:
        DataPlan.objects.filter(pk=work.key).update(problem=failure.reason[:300])
