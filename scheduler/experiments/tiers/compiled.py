"""Compiles the simulator's loops and, with them, the policy functions of the market.

The policies of ``scheduler.tiers`` are plain Python; the live market calls them as
they are and the simulator calls the very same functions compiled.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache, update_wrapper
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
from numba.core import config as numba_config

#: Numba sets its options as attributes when it is imported.
config = cast(Any, numba_config)
F = TypeVar("F", bound=Callable[..., object])
#: Where the policies are.
POLICIES = "scheduler.tiers."
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
    for path in sorted([*simulator, *(here.parents[1] / "tiers").glob("*.py")]):
        digest.update(path.name.encode() + path.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(home / "finetender" / "compiled" / digest.hexdigest()[:16])


def compiled(function: F) -> F:
    """The function as machine code, kept on disk where the cache can be written.

    What it calls of ``scheduler.tiers`` is compiled with it, so that policies may be
    written as functions that call each other.
    """
    return cast(F, _compiled(function))


@cache
def _compiled(function: Callable[..., object]) -> Any:
    before = config.CACHE_DIR
    config.CACHE_DIR = _cache_directory()
    try:
        Path(config.CACHE_DIR).mkdir(parents=True, exist_ok=True)
        keep = os.access(config.CACHE_DIR, os.W_OK)
    except OSError:
        keep = False
    try:
        return cast(Any, numba.njit(cache=keep, error_model="numpy"))(_calling_compiled(function))
    finally:
        config.CACHE_DIR = before


def _calling_compiled(function: Callable[..., object]) -> Callable[..., object]:
    """A policy function whose calls of other policy functions reach compiled ones."""
    assert isinstance(function, FunctionType)
    if not function.__module__.startswith(POLICIES):
        # The simulator names what it calls; a copy would not know what is defined later.
        return function
    called = {
        name: _compiled(found)
        for name in function.__code__.co_names
        if isinstance(found := function.__globals__.get(name), FunctionType)
        and found.__module__.startswith(POLICIES)
    }
    names = {**function.__globals__, **called}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    return update_wrapper(made, function)
