"""Programs of others in an environment of their own, with none of our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

INTEROP = ROOT / "tests" / "interop"


def find_own_python(needed: str, folder: Path, *, variable: str) -> str:
    """The Python of an environment that has ``tests/interop/NEEDED``.

    The environment variable names one that has it already; else it is made in ``folder``.
    """
    if (given := os.environ.get(variable)) is not None:
        return given
    python = str(folder / "bin" / "python")
    run_program(sys.executable, "-m", "venv", str(folder))
    run_program(python, "-m", "pip", "install", "--quiet", "--requirement", str(INTEROP / needed))
    return python


def run_program(*command: str, **more: str) -> str:
    """What a program prints; ``more`` are variables of its environment."""
    done = subprocess.run(
        command, env=os.environ | more, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
