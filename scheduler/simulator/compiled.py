"""Compiles the simulator's loops and, with them, the policy functions of the market.

The policies of ``scheduler.tiers`` are plain Python; the live market calls them as
they are and the simulator calls the very same functions compiled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config as numba_config

#: Numba sets its options as attributes when it is imported.
config = cast(Any, numba_config)
F = TypeVar("F", bound=Callable[..., object])
#: The modules here that are compiled, and those they take constants and layouts from.
TOGETHER = ("compiled", "control", "demands", "loop", "state", "transitions", "work", "workers")


@cache
def _cache_directory() -> str:
    """One directory per state of the sources.

    Numba renews a cached function when its own file changes, not when a function
    it calls does; a digest over all files that are compiled together closes that.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256(numba.__version__.encode())
    simulator = [here / f"{name}.py" for name in TOGETHER]
    for path in sorted([*simulator, *(here.parent / "tiers").glob("*.py")]):
        digest.update(path.name.encode() + path.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(home / "finetender" / "compiled" / digest.hexdigest()[:16])


def compiled(function: F) -> F:
    """The function as machine code, kept on disk where the cache can be written."""
    before = config.CACHE_DIR
    config.CACHE_DIR = _cache_directory()
    try:
        Path(config.CACHE_DIR).mkdir(parents=True, exist_ok=True)
        keep = os.access(config.CACHE_DIR, os.W_OK)
    except OSError:
        keep = False
    try:
        decorate = cast(Callable[[F], Any], numba.njit(cache=keep, error_model="numpy"))
        return cast(F, decorate(function))
    finally:
        config.CACHE_DIR = before
