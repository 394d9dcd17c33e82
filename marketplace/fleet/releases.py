"""Which release of the node fits this market, and where a provider's machine gets it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from django.conf import settings

from marketplace.common.errors import Conflict
from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import BlobRef
from workers.protocol.joining import (
    PROTOCOL_LEAST,
    PROTOCOL_UNSAID,
    RELEASE,
    VERSION_NOT_SPOKEN,
    choose_version,
)
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.release_signing import NodeRelease

WHEEL = f"finetender_node-{RELEASE}-py3-none-any.whl"
CONSTRAINTS = "constraints.txt"
IMAGE_CONTEXT = "finetender-node-image.tar.gz"
#: What ``docker/node_dist.sh`` writes, and this market serves under ``/install/``.
INSTALL_FILES = (WHEEL, CONSTRAINTS, IMAGE_CONTEXT)


def agree_on_version(*, least: int, most: int) -> int:
    """The version of messages to speak with a node; 0 stands for one that does not say.

    Raises
    ------
    Conflict
        ``version_not_spoken``: there is none; the message says what to install.
    """
    least, most = least or PROTOCOL_UNSAID, most or PROTOCOL_UNSAID
    chosen = choose_version(least=least, most=most)
    if chosen is None:
        older = "old" if most < PROTOCOL_LEAST else "new"
        raise Conflict(
            VERSION_NOT_SPOKEN,
            f"This node is too {older} for the market: it speaks protocol {most}, the market "
            f"{PROTOCOL_LEAST} to {PROTOCOL_VERSION}. Install release {RELEASE}: "
            f"{build_pip_command()}",
        )
    return chosen


def build_pip_command(pip: str = "pip") -> str:
    """The line that installs the node of this market's release."""
    files = f"{settings.PUBLIC_URL}/install"
    return f"{pip} install --constraint {files}/{CONSTRAINTS} {files}/{WHEEL}"


def find_release() -> NodeRelease:
    """What nodes of this market install when they update; not signed yet."""
    return NodeRelease(RELEASE, _find_blob(WHEEL), _find_blob(CONSTRAINTS))


def _find_blob(name: str) -> BlobRef:
    """A file that this market serves; without a hash where none was built."""
    path = find_install_file(name)
    if path is None:
        return BlobRef(f"/install/{name}", "", 0)
    found = path.stat()
    return BlobRef(f"/install/{name}", hash_install_file(path, found.st_mtime_ns), found.st_size)


@lru_cache(maxsize=8)
def hash_install_file(path: Path, _changed_at: int) -> str:
    return hash_file(path)


def find_install_file(name: str) -> Path | None:
    """A file that a machine installs from; ``None`` for another name, or where none was built."""
    path = settings.NODE_INSTALL_DIR / name
    return path if name in INSTALL_FILES and path.is_file() else None
