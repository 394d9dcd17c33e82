"""Compiling loops to machine code that is kept on disk between processes."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from functools import cached_property, update_wrapper
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

#: Where code is kept is a setting of the whole process.
_ONE_AT_A_TIME = threading.RLock()


def find_code_directory(name: str, sources: Iterable[Path]) -> str:
    """Give one directory per state of the sources that are compiled together.

    Numba renews a cached function when its own file changes, not when a function it calls does; a
    digest over all files that are compiled together closes that.
    """
    digest = hashlib.sha256(version("numba").encode())
    for path in (Path(__file__), *sources):
        digest.update(path.name.encode() + path.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(home / "finetender" / name / digest.hexdigest()[:16])


def compile_function(function: Callable[..., object], *, directory: str) -> Any:
    """Compile a function when it is first called, and those of this kind that it names.

    The compiler takes some 65 MB of a process, and most of the market's never call it. Without a
    place to keep the code, each process compiles it again. Fast-math stays off: every operation
    happens in the order written, so results are the same bit for bit.

    A recursive function may not have a directory that outlives the process: a process that loads
    its code from there ends with a segmentation fault.
    """
    return _CompiledOnCall(function, directory)


class _CompiledOnCall:
    def __init__(self, function: Callable[..., object], directory: str) -> None:
        self._function = cast("Any", function)
        self._directory = directory
        self._made: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return self._machine_code(*arguments)

    @cached_property
    def _machine_code(self) -> Any:
        with _ONE_AT_A_TIME:
            return self._make()

    def _make(self) -> Any:
        """Make this function and those that it names, which may name it."""
        if self._made is None:
            self._made = _compile(self._function, self._directory)
            names = self._function.__globals__
            for name in self._function.__code__.co_names:
                called = names.get(name)
                if isinstance(called, _CompiledOnCall):
                    # In what it compiles, numba knows no functions but its own.
                    names[name] = called._make()
        return self._made


def _compile(function: Any, directory: str) -> Any:
    import numba
    from numba.core import config

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
