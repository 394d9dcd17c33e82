"""Programs of the market's own package that run on this machine: a node, the auction's replay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from finetender.errors import UsageError
from finetender.settings import find_access


def join_node(arguments: Sequence[str]) -> int:
    """``python -m workers join`` with the market that was signed in to, unless one is given."""
    _require("workers", "pip install '.[worker]'")
    given = list(arguments)
    if not any(argument.split("=")[0] == "--url" for argument in given):
        with suppress(UsageError):
            given = ["--url", find_access().url, *given]
    return _run("workers", "join", *given)


def verify_transcript(path: Path) -> int:
    """Decide everything in a log again; 0 where all of it is as it stands there."""
    _require("scheduler", "pip install '.[sim]'")
    return _run("scheduler", "verify", str(path))


def _require(package: str, command: str) -> None:
    if find_spec(package) is None:
        raise UsageError(
            f"This needs the market's own package beside this one. In its repository: {command}"
        )


def _run(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", *arguments], check=False).returncode
