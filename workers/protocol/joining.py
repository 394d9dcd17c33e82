"""How a machine joins: which version both speak, and what the provider sees meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from workers.protocol.messages import PROTOCOL_VERSION

#: The release of market and node; a market serves the node's package of its own release.
RELEASE = "0.1.0"
#: The earliest version of messages that this release still speaks. Raise it with
#: ``PROTOCOL_VERSION`` when a message changes its meaning; what is only added needs neither.
PROTOCOL_LEAST = 3
#: What a node speaks that does not say so.
PROTOCOL_UNSAID = 2
#: The problem's ``code`` where the two have no version in common; ``detail`` says what to install.
VERSION_NOT_SPOKEN = "version_not_spoken"

#: POST, under a join token in its body: how far a machine is. Its answer is empty.
PATH_JOIN_STEP = "/internal/v1/join/step"

#: POST, public: which release of the node this market serves.
PATH_RELEASE = "/internal/v1/release"

#: Least driver of NVIDIA's for what PyTorch was built with, by CUDA's major version.
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
#: Of the build of PyTorch that a node's package installs.
CUDA_MAJOR = 13
#: Disk that a node needs beside its base model, in GB: data sets, checkpoints and PyTorch itself.
DISK_BESIDE_BASE_GB = 30.0

#: Names that a node tries whose own is taken.
NAMES_TRIED = 16
DETAIL_CHARS = 300
_NOT_PRINTED = re.compile(r"[^\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]+")


class JoinStep(StrEnum):
    """In the order in which a machine does them."""

    CONNECTED = "connected"
    DRIVER = "driver"
    DISK = "disk"
    BASE = "base"
    SELF_TEST = "self_test"
    ON_SALE = "on_sale"


@dataclass(frozen=True, slots=True)
class JoinStepReport:
    """What a machine that joins does now. A step reported after another means that one is done."""

    token: str
    #: The node's name.
    name: str
    step: JoinStep
    #: Of the step, from 0 to 1; ``None`` where it is not counted.
    share: float | None = None
    #: A few words: what was found, or why the step failed and what to do.
    detail: str = ""
    #: The machine gave up here.
    failed: bool = False


def list_names(name: str) -> tuple[str, ...]:
    """The names that a node whose name is taken tries, the first one itself."""
    return (name, *(f"{name[:60]}-{number}" for number in range(2, NAMES_TRIED + 2)))


def choose_version(*, least: int, most: int) -> int | None:
    """The version to speak with a side that speaks ``least`` to ``most``; ``None`` without one."""
    chosen = min(most, PROTOCOL_VERSION)
    return chosen if chosen >= max(least, PROTOCOL_LEAST) else None


def clean_detail(text: str) -> str:
    """One line of printable characters, cut to ``DETAIL_CHARS``."""
    return _NOT_PRINTED.sub(" ", text).strip()[:DETAIL_CHARS]
