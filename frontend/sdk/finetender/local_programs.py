"""Programs of the market's own package here: a node, the reader of rows, a replay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from finetender.errors import FinetenderError, UsageError
from finetender.settings import find_access

#: What the reader of rows imports beside the market's own package; its extra ``check``.
_READER_NEEDS = ("huggingface_hub", "jinja2", "tokenizers")


def join_node(arguments: Sequence[str]) -> int:
    """``python -m workers join`` with the market that was signed in to, unless one is given."""
    if find_spec("workers") is None:
        raise UsageError(
            "This needs the node's package beside this one: install it into this environment by "
            "the first of the lines that 'finetender nodes token' prints, or join by these lines."
        )
    given = list(arguments)
    if not any(argument.split("=")[0] == "--url" for argument in given):
        with suppress(UsageError):
            given = ["--url", find_access().url, *given]
    return _run("workers", "join", *given)


def verify_transcript(path: Path, *, chain_only: bool) -> int:
    """Decide everything in a log again; 0 where all of it is as it stands there.

    With ``chain_only`` nothing is decided again: that takes less than the market's own package.
    """
    if chain_only:
        return _run(_find_verifier(), "transcript", str(path))
    _require("pip install '.[sim]'; or check the chain alone, with --chain-only", "scheduler")
    return _run("scheduler", "verify", str(path))


def verify_receipt(*arguments: str) -> int:
    """Check what an owner holds of a bid."""
    return _run(_find_verifier(), "receipt", *arguments)


def _find_verifier() -> str:
    """The module of ``finetender-verify``, which the market's own package has too."""
    if find_spec("finetender_verify") is None and find_spec("scheduler") is not None:
        return "scheduler.public_log"
    if find_spec("finetender_verify") is None:
        raise UsageError("This needs one more package: pip install finetender-verify")
    return "finetender_verify"


def check_rows(path: Path, *, base: str, longest: int | None) -> tuple[bool, dict[str, Any]]:
    """Read rows as the market reads them; whether it would take them, and what they are."""
    _require("pip install '.[check]'", "marketplace", *_READER_NEEDS)
    command = [sys.executable, "-m", "marketplace.jobs.check_file", str(path), "--base", base]
    limit = [] if longest is None else ["--longest", str(longest)]
    done = subprocess.run([*command, *limit], check=False, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        raise FinetenderError(f"The reader ended with {done.returncode}.")
    return done.returncode == 0, json.loads(done.stdout.splitlines()[-1])


def _require(command: str, *packages: str) -> None:
    if None in map(find_spec, packages):
        raise UsageError(
            f"This needs the market's own package beside this one. In its repository: {command}"
        )


def _run(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", *arguments], check=False).returncode
