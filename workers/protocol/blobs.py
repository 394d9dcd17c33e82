"""Files that travel between market and nodes, named by the hash of their bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path


def hash_file(path: Path) -> str:
    """SHA-256 of a file as hexadecimal digits, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
