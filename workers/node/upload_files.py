"""Files on their way from the runtime to the market."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


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
