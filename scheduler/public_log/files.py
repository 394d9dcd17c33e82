"""Files that strangers wrote: read within bounds, and printed so that they steer no terminal."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

#: Characters of a line, or of a proof: more than any has, and less than a machine's memory.
MOST_CHARACTERS = 2**28


def keep_printable(text: str) -> str:
    """Text for a terminal: a stranger's file may neither steer it nor add lines to ours."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


@contextmanager
def open_lines(path: str | Path) -> Generator[Iterator[str]]:
    """Open a file of lines of at most ``MOST_CHARACTERS``.

    Raises
    ------
    ValueError
        As a line is read that is longer.
    """
    with Path(path).open(encoding="utf-8") as file:
        yield _read_lines(file)


def _read_lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(MOST_CHARACTERS + 1):
        if len(line) > MOST_CHARACTERS:
            raise ValueError(f"a line has more than {MOST_CHARACTERS} characters")
        yield line


def read_text(path: str | Path) -> str:
    """Give the text of a file of at most ``MOST_CHARACTERS``.

    Raises
    ------
    ValueError
        It has more.
    """
    with Path(path).open(encoding="utf-8") as file:
        text = file.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
    return text
