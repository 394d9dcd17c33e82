"""Files on their way from the runtime to the market."""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from pathlib import Path

from workers.protocol.messages import ADAPTER_FILES

#: A fixed date makes equal adapters equal zips.
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


def link_or_copy(path: Path, outbox: Path, *, name: str) -> Path:
    """A second name for a checkpoint, so that the runtime may delete its own.

    Raises
    ------
    OSError
        Such as a full disk.
    """
    outbox.mkdir(parents=True, exist_ok=True)
    copy = outbox / name
    copy.unlink(missing_ok=True)
    try:
        os.link(path, copy)
    except OSError:
        # Another file system, or one without hard links.
        try:
            shutil.copyfile(path, copy)
        except OSError:
            copy.unlink(missing_ok=True)
            raise
    return copy


def discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def zip_adapter(directory: Path, target: Path) -> Path:
    """The files of an adapter in one zip; weights do not compress, so nothing is compressed.

    Raises
    ------
    OSError
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in ADAPTER_FILES:
            path = directory / name
            if not path.is_file():
                continue
            entry = zipfile.ZipInfo(name, date_time=_ZIP_DATE)
            entry.external_attr = 0o644 << 16
            with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as part:
                shutil.copyfileobj(source, part)
    return target
