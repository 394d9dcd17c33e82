"""An adapter comes whole or not at all."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

from tests.unit.workers.training_builders import (
    admit,
    random_examples,
    run_steps,
    tiny_model,
    trainer,
    training_job,
)
from workers.training import adapter_stack, fused_trainer
from workers.training.faults import SystemFault
from workers.training.fused_trainer import FusedTrainer
from workers.training.job import TrainingJob

#: Of the tiny model, whose two blocks have seven projections each: value and gradient of both
#: matrices of each, and then two moments of each.
STACKS, MOMENTS = 2 * 7 * 4, 2 * 7 * 4


class FullDevice:
    """Has memory for so many more tensors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, room: int) -> None:
        self._places = count()
        self.room = room
        for module, name in ((adapter_stack, "allocate"), (fused_trainer, "make_moment")):
            monkeypatch.setattr(module, name, self._limit(getattr(module, name)))

    def _limit(self, real: Any) -> Any:
        def allocate(*args: Any, **settings: Any) -> torch.Tensor:
            if next(self._places) >= self.room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(*args, **settings)

        return allocate


def newcomer(**changes: Any) -> TrainingJob:
    return training_job("new", random_examples(8, seed=9), adapter={"rank": 6, **changes})


def describe(fused: FusedTrainer) -> dict[str, Any]:
    """Everything that a newcomer could change: bits, places and sizes."""
    found: dict[str, Any] = {"jobs": list(fused.jobs), "trained": sorted(fused.model.trained)}
    for name, layer in fused.model.layers.items():
        stack = layer.trained
        assert stack.A_RD is not None
        assert stack.B_RO is not None
        found[name] = [(job, slot.start, slot.rows) for job, slot in stack.slots.items()]
        for matrix in (stack.A_RD, stack.B_RO):
            assert matrix.grad is not None
            found[name] += [matrix.tolist(), matrix.grad.tolist()]
            found[name] += [matrix.untyped_storage().nbytes()]
    return found


@pytest.mark.parametrize("room", [*range(STACKS), STACKS, STACKS + MOMENTS - 1])
def test_out_of_memory_at_any_place_leaves_all_as_it_was(room, monkeypatch):
    fused = trainer(tiny_model())
    admit(fused, training_job("a", random_examples(24, seed=1), adapter={"rank": 3}))
    run_steps(fused, 1)
    before, job = describe(fused), newcomer()
    full = FullDevice(monkeypatch, room=room)
    with pytest.raises(SystemFault, match=r"needs 0\.\d{3} GB and \d+\.\d{3} GB are free"):
        admit(fused, job)
    assert describe(fused) == before
    assert (job.means, job.squares) == ({}, {})
    full.room = 10**6
    admit(fused, job)
    assert list(fused.jobs) == ["a", "new"]


def test_neighbours_and_a_later_try_train_as_if_nothing_had_been(monkeypatch):
    curves = []
    for fails in (False, True):
        fused = trainer(tiny_model())
        admit(fused, training_job("a", random_examples(24, seed=1)))
        run_steps(fused, 2)
        if fails:
            with monkeypatch.context() as patch:
                FullDevice(patch, room=STACKS // 2)
                with pytest.raises(SystemFault):
                    admit(fused, newcomer())
        admit(fused, newcomer())
        curves.append(run_steps(fused, 3))
    assert curves[0] == curves[1]


def test_any_other_failure_leaves_nothing_behind_either(monkeypatch):
    fused = trainer(tiny_model())
    admit(fused, training_job("a", random_examples(24, seed=1)))
    before = describe(fused)

    def fail(*_: Any, **__: Any) -> torch.Tensor:
        raise ZeroDivisionError

    monkeypatch.setattr(fused_trainer, "make_moment", fail)
    with pytest.raises(ZeroDivisionError):
        admit(fused, newcomer())
    assert describe(fused) == before
