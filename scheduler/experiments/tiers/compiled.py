"""Compiles the simulator's loops and, with them, the policy functions of the market.

The policies of ``scheduler.tiers`` are plain Python; the live market calls them as
they are and the simulator calls the very same functions compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

from scheduler.compilation import compile_function, find_code_directory

F = TypeVar("F", bound=Callable[..., object])
#: Where the policies are.
POLICIES = "scheduler.tiers."
#: The modules here that are compiled, and those they take constants and layouts from.
TOGETHER = (
    *("choices", "compiled", "control", "demands", "loop", "starts"),
    *("state", "transitions", "work", "workers"),
)


def compiled(function: F) -> F:
    """The function as machine code, kept on disk where the cache can be written.

    What it calls of ``scheduler.tiers`` is compiled with it, so that policies may be
    written as functions that call each other.
    """
    return cast(F, _compiled(function))


@cache
def _compiled(function: Callable[..., object]) -> Any:
    return compile_function(_calling_compiled(function), directory=_find_directory())


@cache
def _find_directory() -> str:
    here = Path(__file__).parent
    simulator = [here / f"{name}.py" for name in TOGETHER]
    return find_code_directory(
        "compiled", sorted([*simulator, *(here.parents[1] / "tiers").glob("*.py")])
    )


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
