"""What all commands have in common: their client, and how they print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from finetender.client import Client
from finetender.errors import UsageError
from finetender.exchange import Connection
from finetender.progress import draw_bar, keep_printable, say


def open_client(chosen: argparse.Namespace) -> Client:
    """A client by the profile and certificates that were named; uploads show how far they are."""
    connection = Connection(ca=chosen.ca)
    return Client(profile=chosen.profile, connection=connection, on_sent=show_bytes("sent"))


def show_bytes(what: str) -> Callable[[int, int], None]:
    """Draw how much of a file has gone, on a terminal; a line of its own is what is left of it."""

    def show(done: int, total: int) -> None:
        if not sys.stderr.isatty():
            return
        bar = draw_bar(done / max(total, 1))
        end = "\n" if done >= total else ""
        line = f"\r\x1b[K{bar} {done / 1e6:.1f} of {total / 1e6:.1f} MB {what}"
        print(line, end=end, file=sys.stderr, flush=True)

    return show


def tell(chosen: argparse.Namespace, text: str, value: Any) -> None:
    """Print what came of a command: a sentence, or with ``--json`` the value."""
    if chosen.json:
        print_json(value)
    else:
        say(text)


def print_json(value: Any) -> None:
    """Print a value as ``--json`` does."""
    print(json.dumps(value, indent=2))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns under their names."""
    shown = [[keep_printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())


def show_moment(moment: Any) -> str:
    """A moment as this machine's clock would show it."""
    return "?" if moment is None else moment.astimezone().strftime("%d %b %H:%M:%S")


def read_price(text: str) -> Decimal:
    """Dollars as they are written.

    Raises
    ------
    UsageError
    """
    try:
        price = Decimal(text.removeprefix("$"))
    except ArithmeticError:
        price = Decimal("nan")
    if not price.is_finite():
        raise UsageError(f"{text!r} is no price; give dollars such as 4.50.")
    return price
