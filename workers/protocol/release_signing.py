"""What a market's key signs so that its nodes install a release, and that another key follows it.

The key is the one that signs the log's heads (Ed25519). A node remembers it from when it joined.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.protocol.job_spec import BlobRef

_SUCCESSION_FORMAT = "finetender-key-succession-1"
_RELEASE_FORMAT = "finetender-node-release-1"


@dataclass(frozen=True, slots=True)
class KeySuccession:
    """That one key follows another; keys and signature are in hex."""

    old: str
    new: str
    #: Of ``build_succession_text``, by the old key.
    signature: str


@dataclass(frozen=True, slots=True)
class NodeRelease:
    """The node's package of a market's release; paths are on the market's own host."""

    release: str
    wheel: BlobRef
    constraints: BlobRef
    #: Of a later signature it is higher, so that a node knows an older release: 0 if not signed.
    serial: int = 0
    #: Of ``build_release_text``, in hex, by the last key of the succession.
    signature: str = ""
    #: The market's keys from the first on, as far as each vouched for the next.
    succession: tuple[KeySuccession, ...] = ()


def build_succession_text(*, old: str, new: str) -> bytes:
    """What a key signs to name its successor; both in hex."""
    return f"{_SUCCESSION_FORMAT}|{old}|{new}".encode("ascii")


def build_release_text(release: NodeRelease) -> bytes:
    """What a key signs for a release: which it is, the hashes of its files and its serial."""
    files = release.wheel.sha256, release.constraints.sha256
    parts = (release.release, *files, str(release.serial))
    return "|".join((_RELEASE_FORMAT, *parts)).encode()
