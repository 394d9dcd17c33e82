"""Functions are compiled when they are called, also those that name themselves."""

from __future__ import annotations

import sys
import tempfile

from scheduler.compilation import compile_function

#: Of this process alone: numba loads kept code of recursive functions wrongly.
DIRECTORY = tempfile.TemporaryDirectory()


def compiled(function):
    return compile_function(function, directory=DIRECTORY.name)


def test_functions_compile_when_called_and_may_name_themselves_and_each_other(tmp_path):
    assert multiply_up(5) == 120
    assert halve_down(9) == 4
    # Without a place to keep the code each process compiles it again.
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert compile_function(add_one, directory=str(blocked / "inside"))(2) == 3


def test_a_function_keeps_its_name_and_its_words():
    assert multiply_up.__name__ == "multiply_up"
    assert multiply_up.__doc__ == "A factorial."
    assert multiply_up.__module__ in sys.modules


def add_one(number):
    return number + 1


@compiled
def multiply_up(number):
    """A factorial."""
    return 1 if number <= 1 else number * multiply_up(number - 1)


@compiled
def halve_down(number):
    return number if number < 2 else add_up(number // 2, 0)


@compiled
def add_up(number, total):
    # Names the other, and never gets there with these.
    return total + number if number < 100 else halve_down(number)
