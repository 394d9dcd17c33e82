"""What a kind of vendor does with the data of an admitted bid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol

from marketplace.vendors.handed_files import Delivery, FoundRow, HandOver
from marketplace.vendors.models import Preparation
from workers.protocol.job_terms import PreparationWish


class VendorWork(Protocol):
    """How one kind of vendor works. Facts that offers need stand on ``VendorKind``."""

    def begin(
        self,
        preparation: Preparation,
        wish: PreparationWish,
        *,
        raw: Path,
        folder: Path,
        on_step: Callable[[], None],
    ) -> Delivery | HandOver:
        """Do the work, or get the data ready for it; no transaction is open.

        Parameters
        ----------
        raw
            The owner's data.
        folder
            For files, until they are stored.
        on_step
            To be called after each step but the last; one takes at most ``preparing.WALL_S``.

        Raises
        ------
        UserError
            The vendor cannot do it: the next one is tried.
        MarketFault
            Our fault: it begins again, at last when an operator says so.
        """
        ...

    def announce(self, preparation: Preparation, *, now: datetime) -> None:
        """Tell the vendor that the data are ready, in the transaction that makes them so."""
        ...

    def iter_rows(self, preparation: Preparation) -> Iterator[FoundRow]:
        """Every row as the vendor got it, for second opinions; none where none are asked for."""
        ...

    def write_changes(self, preparation: Preparation, path: Path) -> None:
        """Write what was done to the rows that were handed in, where the market knows it."""
        ...
