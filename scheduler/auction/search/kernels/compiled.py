"""Compilation of this package's loops, kept on disk between processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from inspect import getfile
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import config
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., object])
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INFINITY = float("inf")


@cache
def _cache_directory(folder: Path) -> str:
    """Give one directory per state of the sources in a folder and in this one.

    Numba renews a cached function when its own file changes, not when a function
    it calls does; a digest over all files that are compiled together closes that.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for each in sorted({folder, Path(__file__).parent}):
        for path in sorted(each.glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(home / "finetender" / "auction" / digest.hexdigest()[:16])


def compiled(function: F) -> F:
    """Compile a function; without a place to keep it, each process compiles it again.

    Fast-math stays off: every operation happens in the order written, so results
    are the same bit for bit.
    """
    settings = cast("dict[str, Any]", vars(config))
    before = settings["CACHE_DIR"]
    home = settings["CACHE_DIR"] = _cache_directory(Path(getfile(function)).parent)
    try:
        Path(home).mkdir(parents=True, exist_ok=True)
        keep = os.access(home, os.W_OK)
    except OSError:
        keep = False
    try:
        decorate = cast(Callable[[F], Any], numba.njit(cache=keep, error_model="numpy"))
        return cast(F, decorate(function))
    finally:
        settings["CACHE_DIR"] = before


@compiled
def extend_ints(old: Ints, size: int) -> Ints:
    """Give a copy with room for more at its end."""
    new = np.empty(size, np.int64)
    new[: old.shape[0]] = old
    return new


@compiled
def extend_rows(old: Any, size: int) -> Any:
    """Give a copy of a table with room for more rows at its end."""
    new = np.empty((size, old.shape[1]), old.dtype)
    new[: old.shape[0]] = old
    return new
