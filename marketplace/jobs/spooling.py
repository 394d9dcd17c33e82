"""Taking in a stream of bytes of unknown length: bounded, hashed, checked, then stored whole."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Protocol

from django.core.files import File
from django.core.files.storage import default_storage

from marketplace.common.errors import UserError

CHUNK_BYTES = 1024 * 1024


class Content(Protocol):
    """Anything that hands out bytes: a request, an upload, ``io.BytesIO``."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SpooledFile:
    """A stream that arrived whole, in a temporary file that stands at its beginning."""

    file: IO[bytes]
    sha256: str
    bytes: int


@contextmanager
def spool_upload(
    content: Content, *, limit_bytes: int, what: str, sha256: str | None = None
) -> Iterator[SpooledFile]:
    """Spool a stream to a temporary file on disk, never more than the limit.

    Parameters
    ----------
    sha256
        What the sender says the content hashes to.

    Raises
    ------
    UserError
        ``file_empty``, ``file_too_large`` (413) or ``file_damaged`` (503: send it again). Nothing
        is kept.
    """
    digest = hashlib.sha256()
    size = 0
    with tempfile.TemporaryFile() as spool:
        while chunk := content.read(CHUNK_BYTES):
            size += len(chunk)
            if size > limit_bytes:
                raise UserError(
                    "file_too_large",
                    f"{what} is larger than {limit_bytes:,} bytes. Send a smaller file.",
                    param="file",
                    status=413,
                )
            digest.update(chunk)
            spool.write(chunk)
        if size == 0:
            raise UserError("file_empty", f"{what} is empty. Send a file with data.", param="file")
        if sha256 is not None and sha256.lower() != digest.hexdigest():
            raise UserError(
                "file_damaged", f"{what} did not arrive as it was sent. Send it again.", status=503
            )
        spool.seek(0)
        yield SpooledFile(file=spool, sha256=digest.hexdigest(), bytes=size)


@contextmanager
def store_file(path: str, file: IO[bytes]) -> Iterator[str]:
    """Store a file for the block, and for good only if the block succeeds."""
    file.seek(0)
    name = default_storage.save(path, File(file))
    try:
        yield name
    except BaseException:
        default_storage.delete(name)
        raise
