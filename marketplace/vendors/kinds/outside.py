"""Another organisation's systems, which fetch the data and deliver by signed links."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from marketplace.common.durable.services import NewWork, restart_work
from marketplace.vendors.handed_files import FoundRow, HandOver
from marketplace.vendors.handover import TELL
from marketplace.vendors.models import Preparation
from marketplace.vendors.preparing import trace_in_process
from workers.protocol.job_terms import PreparationWish


class OutsideWork:
    """``VendorWork`` of outside systems."""

    def begin(
        self,
        preparation: Preparation,
        wish: PreparationWish,
        *,
        raw: Path,
        folder: Path,
        on_step: Callable[[], None],
    ) -> HandOver:
        """Copy the rows, each with its id, as their owner lets them leave."""
        copy = folder / "copy"
        trace_in_process(raw, copy=copy, wish=wish)
        return HandOver(copy=copy)

    def announce(self, preparation: Preparation, *, now: datetime) -> None:
        """Tell the vendor's system, where it has one that listens."""
        if preparation.vendor.endpoint:
            restart_work(NewWork(TELL, preparation.pk, due_at=now))

    def iter_rows(self, preparation: Preparation) -> Iterator[FoundRow]:
        """The rows of the copy that it fetched."""
        with preparation.copy.open("rb") as lines:
            for line in lines:
                row = json.loads(line)
                number = row.pop("row_id")
                text = json.dumps(row, ensure_ascii=False)
                # What is no JSON object stands in one key of its own.
                yield FoundRow(number, text, "" if set(row) == {"raw"} else text)

    def write_changes(self, preparation: Preparation, path: Path) -> None:
        """What it did to the rows, the comparison says."""
