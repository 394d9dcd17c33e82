"""Files that take the place of rows: stored for good, and read only where nothing is altered."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any

import pgtrigger
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import models
from django.db.models.fields.files import FieldFile

from marketplace.common.errors import Conflict, MarketFault
from scheduler.public_log.canonical_json import serialize_canonical
from scheduler.public_log.heads import is_signed


class ArchiveUnreadable(MarketFault):
    """What left the database is in a file that is lost, or that is not what was archived."""


class ArchiveFile(models.Model):
    """A compressed file that has the place of rows, and what the market's key signed of it."""

    file = models.FileField(max_length=255)
    #: Of the file as it is stored.
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    #: JSON text of what is signed, with the signature, for those who have the files alone.
    manifest = models.FileField(max_length=255)
    archived_at = models.DateTimeField()
    #: Of the market's key, in hex; the signature covers all but the names of the files.
    public_key = models.CharField(max_length=64)
    signature = models.CharField(max_length=128)

    class Meta:
        abstract = True
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def describe_content(self) -> dict[str, Any]:
        """Say what is in the file, for the manifest."""
        raise NotImplementedError

    def describe_manifest(self) -> dict[str, Any]:
        """Say all that the market's key signs of the file."""
        return self.describe_content() | {
            "sha256": self.sha256,
            "bytes": self.bytes,
            "archived_at": self.archived_at.isoformat(),
            "public_key": self.public_key,
        }

    def is_signed(self) -> bool:
        """Whether the key that it names signed it."""
        return is_signed(self._build_text(), key=self.public_key, signature=self.signature)

    def store(self, content: bytes, *, place: str, sign: Callable[[bytes], bytes]) -> None:
        """Store the file and its manifest; the row is the caller's to save, once both are read.

        Parameters
        ----------
        content
        place
            What the names of both begin with, before the content's hash.
        sign
            Signs with the key that ``public_key`` names.
        """
        self.sha256, self.bytes = hashlib.sha256(content).hexdigest(), len(content)
        self.signature = sign(self._build_text()).hex()
        self.file.name = save_for_good(f"{place}{self.sha256}.xz", content)
        self.manifest.name = save_for_good(f"{place}{self.sha256}.json", self._write_manifest())

    def check_manifest(self) -> None:
        """Read the manifest back.

        Raises
        ------
        Conflict
            ``archive_failed``: the storage has another one.
        """
        with self.manifest.open("rb") as file:
            if file.read() != self._write_manifest():
                raise Conflict("archive_failed", f"The storage has {self.manifest.name} otherwise.")

    def _write_manifest(self) -> bytes:
        manifest = self.describe_manifest() | {"signature": self.signature}
        return json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"

    def _build_text(self) -> bytes:
        return serialize_canonical(self.describe_manifest()).encode()


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


def list_lost_files(model: type[ArchiveFile]) -> list[str]:
    """List what the storage does not have; each folder is listed once, and no file is read.

    Raises
    ------
    OSError
        The storage does not answer.
    """
    names = model._default_manager.order_by("pk").values_list("file", "manifest")
    by_folder: defaultdict[str, set[str]] = defaultdict(set)
    for each in chain.from_iterable(names.iterator()):
        folder, _, name = each.rpartition("/")
        by_folder[folder].add(name)
    lost: list[str] = []
    for folder, wanted in by_folder.items():
        try:
            _, there = default_storage.listdir(folder)
        except FileNotFoundError:
            there = []
        lost += [f"{folder}/{name}" for name in sorted(wanted.difference(there))]
    return lost
