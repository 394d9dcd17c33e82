"""The printed program: no solution to the letter, no GPU for anyone otherwise."""

from __future__ import annotations

from scheduler.experiments.merging.printed import merge_as_printed
from tests.unit.scheduler.experiments.merging.instance_builders import instance

LINEAR = [1000.0, 500.0, 1000.0 / 3.0, 250.0]
TWO = instance(4, [LINEAR, LINEAR], [(0, 1, False, [seconds / 10 for seconds in LINEAR])])


def test_read_literally_the_printed_program_has_no_solution() -> None:
    found = merge_as_printed(TWO, literal=True)
    assert (found.feasible, found.assignments, found.waiting) == (False, (), (0, 1))


def test_read_kindly_the_printed_optimum_gives_no_job_a_gpu() -> None:
    found = merge_as_printed(TWO, literal=False)
    assert (found.feasible, found.optimal, found.objective) == (True, True, 0.0)
    assert (found.assignments, found.waiting) == ((), (0, 1))


def test_a_single_job_is_feasible_to_the_letter_and_still_gets_nothing() -> None:
    found = merge_as_printed(instance(4, [LINEAR]), literal=True)
    assert (found.feasible, found.objective, found.waiting) == (True, 0.0, (0,))
