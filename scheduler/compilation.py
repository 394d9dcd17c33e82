"""Compiling loops to machine code that is kept on disk between processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numba
from numba.core import config


def find_code_directory(name: str, sources: Iterable[Path]) -> str:
    """Give one directory per state of the sources that are compiled together.

    Numba renews a cached function when its own file changes, not when a function it calls does; a
    digest over all files that are compiled together closes that.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for path in (Path(__file__), *sources):
        digest.update(path.name.encode() + path.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(home / "finetender" / name / digest.hexdigest()[:16])


def compile_function(function: Callable[..., object], *, directory: str) -> Any:
    """Compile a function; without a place to keep it, each process compiles it again.

    Fast-math stays off: every operation happens in the order written, so results are the same bit
    for bit.
    """
    # Numba sets its options as attributes when it is imported.
    options = cast("dict[str, Any]", vars(config))
    before = options["CACHE_DIR"]
    options["CACHE_DIR"] = directory
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        is_kept = os.access(directory, os.W_OK)
    except OSError:
        is_kept = False
    try:
        return cast("Any", numba.njit(cache=is_kept, error_model="numpy"))(function)
    finally:
        options["CACHE_DIR"] = before
