"""Files that take the place of rows: stored for good, and read only where nothing is altered."""

from __future__ import annotations

import hashlib
import lzma
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db.models.fields.files import FieldFile

from marketplace.common.errors import MarketFault


class ArchiveUnreadable(MarketFault):
    """What left the database is in a file that is lost, or that is not what was archived."""


def save_for_good(name: str, content: bytes) -> str:
    """Store a file that outlasts a power cut, as the transaction after it does; its name."""
    stored = default_storage.save(name, ContentFile(content))
    try:
        path = Path(default_storage.path(stored))
    except NotImplementedError:
        return stored  # a bucket keeps what it has acknowledged
    root = Path(default_storage.path(""))
    for place in (path, *(parent for parent in path.parents if parent.is_relative_to(root))):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return stored


def read_lines(stored: FieldFile, *, sha256: str) -> Iterator[str]:
    """Read the lines of a compressed file that has this hash; memory holds one line at a time.

    The storage may be asked over the network.

    Raises
    ------
    ArchiveUnreadable
        The storage does not have it, or has another one.
    """
    try:
        with stored.open("rb") as file:
            content = file.read()
    except Exception as error:
        raise ArchiveUnreadable(f"the file {stored.name} cannot be read: {error}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ArchiveUnreadable(f"the file {stored.name} is not what was archived")
    try:
        with TextIOWrapper(lzma.open(BytesIO(content)), encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield line.removesuffix("\n")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise ArchiveUnreadable(f"the file {stored.name}: {error}") from error


def find_lost(names: Iterable[str]) -> list[str]:
    """Find the files that the storage does not have; each folder is listed once, and none is read.

    Raises
    ------
    OSError
        The storage does not answer.
    """
    by_folder: defaultdict[str, set[str]] = defaultdict(set)
    for folder, _, name in (each.rpartition("/") for each in names):
        by_folder[folder].add(name)
    lost: list[str] = []
    for folder, wanted in by_folder.items():
        try:
            _, there = default_storage.listdir(folder)
        except FileNotFoundError:
            there = []
        lost += [f"{folder}/{name}" for name in sorted(wanted.difference(there))]
    return lost
