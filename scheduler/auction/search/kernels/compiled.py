"""Compilation of this package's loops, kept on disk between processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import getfile
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from scheduler.compilation import compile_function, find_code_directory

F = TypeVar("F", bound=Callable[..., object])
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INFINITY = float("inf")


def compiled(function: F) -> F:
    """Compile a function of this package, or of another folder that calls this package's."""
    directory = _find_directory(Path(getfile(function)).parent)
    return cast(F, compile_function(function, directory=directory))


@cache
def _find_directory(folder: Path) -> str:
    folders = sorted({folder, Path(__file__).parent})
    return find_code_directory(
        "auction", [path for each in folders for path in sorted(each.glob("*.py"))]
    )


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
