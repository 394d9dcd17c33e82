"""The market's own program: it does the work itself, and nobody sees the data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from marketplace.vendors.acceptance import judge_as_planned, judge_by_rule
from marketplace.vendors.handed_files import Delivery, FoundRow
from marketplace.vendors.models import Preparation
from marketplace.vendors.plans import find_sold_plan
from marketplace.vendors.preparing import compare_in_process, prepare_in_process
from workers.protocol.job_terms import PreparationWish


class AutomaticWork:
    """``VendorWork`` of ``workers.preparation``."""

    def begin(
        self,
        preparation: Preparation,
        wish: PreparationWish,
        *,
        raw: Path,
        folder: Path,
        on_step: Callable[[], None],
    ) -> Delivery:
        """Prepare the data, and say where the result fails its plan or the rule."""
        out = folder / "out"
        made = prepare_in_process(raw, folder=out, wish=wish)
        on_step()
        whole = out / "whole.jsonl"
        _join_traced(out, whole)
        comparison = compare_in_process(raw, delivered=whole, wish=wish)
        plan = find_sold_plan(wish, dataset=preparation.source)
        objection = judge_as_planned(made, plan) or judge_by_rule(comparison, wish, plan=plan)
        return Delivery(
            training=out / "train.jsonl",
            held_out=out / "validation.jsonl" if made["summary"]["rows_held_out"] else None,
            changes=out / "changes.jsonl",
            origins=out / "origins.jsonl",
            report=made["summary"],
            comparison=comparison,
            objection=objection,
        )

    def announce(self, preparation: Preparation, *, now: datetime) -> None:
        """Nobody waits for its data."""

    def iter_rows(self, preparation: Preparation) -> Iterator[FoundRow]:
        """Nobody does again what a program does the same way."""
        return iter(())

    def write_changes(self, preparation: Preparation, path: Path) -> None:
        """It delivers them itself."""


def _join_traced(folder: Path, whole: Path) -> None:
    """Write the prepared rows, held out or not, each with the id of the row that it was."""
    parts = (folder / "train.jsonl", folder / "validation.jsonl")
    with (
        (folder / "origins.jsonl").open(encoding="utf-8") as origins,
        whole.open("w", encoding="utf-8") as out,
    ):
        for part in filter(Path.is_file, parts):
            with part.open(encoding="utf-8") as rows:
                for row in rows:
                    row_id = json.loads(next(origins))["row_id"]
                    out.write(json.dumps(json.loads(row) | {"row_id": row_id}) + "\n")
