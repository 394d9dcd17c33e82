"""Files in a folder (``MEDIA_ROOT``), where no bucket is named."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import PurePosixPath

from django.core.files import File
from django.core.files.storage import FileSystemStorage


class FolderStorage(FileSystemStorage):
    """A folder. A file is there whole or not at all, under a name that no other file ever has.

    What a full disk cut off goes at once: else the disk stays full of parts that no row names.
    """

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        return add_unique_part(name)

    def _save(self, name: str, content: File) -> str:
        try:
            return super()._save(name, content)  # pyright: ignore[reportAttributeAccessIssue]
        except BaseException:
            with suppress(OSError):
                self.delete(name)
            raise


def add_unique_part(name: str) -> str:
    """Give a file a name that no other one ever has."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}-{secrets.token_hex(8)}{path.suffix}"))
