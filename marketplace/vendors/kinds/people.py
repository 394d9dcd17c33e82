"""People of another organisation, who work on rows in this market's console."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from marketplace.vendors.handed_files import FoundRow, HandOver
from marketplace.vendors.models import Preparation, WorkRow
from marketplace.vendors.people import write_changes
from marketplace.vendors.preparing import list_rows_in_process
from workers.protocol.job_terms import PreparationWish


class PeoplesWork:
    """``VendorWork`` of people."""

    def begin(
        self,
        preparation: Preparation,
        wish: PreparationWish,
        *,
        raw: Path,
        folder: Path,
        on_step: Callable[[], None],
    ) -> HandOver:
        """List every row with a proposal."""
        rows = folder / "rows"
        list_rows_in_process(raw, rows=rows, wish=wish)
        return HandOver(rows=rows)

    def announce(self, preparation: Preparation, *, now: datetime) -> None:
        """Their console lists it."""

    def iter_rows(self, preparation: Preparation) -> Iterator[FoundRow]:
        """The rows of their console."""
        rows = WorkRow.objects.filter(preparation=preparation).order_by("number")
        found = rows.values_list("number", "raw", "proposal").iterator(chunk_size=500)
        return itertools.starmap(FoundRow, found)

    def write_changes(self, preparation: Preparation, path: Path) -> None:
        """Write what people did to each row."""
        write_changes(preparation, path)
