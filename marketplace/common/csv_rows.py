"""Rows of CSV for spreadsheets, which take some texts for formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from decimal import Decimal

#: How a cell begins that a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv_row(cells: Iterable[str | Decimal]) -> str:
    """One line without its end; numbers stay as they are, below zero too."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(_write_cell, cells))
    return line.getvalue()


def _write_cell(cell: str | Decimal) -> str:
    if isinstance(cell, Decimal):
        return f"{cell:f}"
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
