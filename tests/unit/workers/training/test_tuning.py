"""What no GPU has proved is tried only where somebody asks for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.workers.training_builders import tiny_model
from workers.training import tuning
from workers.training.packed_model import PackedModel
from workers.training.tuning import CUDA_TRIALS_VARIABLE, build_tuned_trainer, read_cuda_trials


class CudaModel(PackedModel):
    """A model that says it is on a GPU, which is all that tuning looks at."""

    @property
    def device(self) -> Any:
        return SimpleNamespace(type="cuda")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(tuning, "compile_norms_if_faster", lambda _: found.append("norms"))
    monkeypatch.setattr(
        tuning, "record_steps_if_faster", lambda *_: found.append("steps") or "recorded"
    )
    monkeypatch.setattr(tuning, "CudaGraphRunner", lambda _: None)
    return found


def test_nothing_unproven_is_tried_by_default(tried, monkeypatch):
    monkeypatch.delenv(CUDA_TRIALS_VARIABLE, raising=False)
    trainer = build_tuned_trainer(CudaModel(tiny_model()))
    assert tried == []
    assert trainer.fixed is None


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("recorded_steps", ["steps"]),
        ("compiled_norms", ["norms"]),
        ("recorded_steps, compiled_norms", ["norms", "steps"]),
    ],
)
def test_what_is_asked_for_is_tried_on_cuda(tried, monkeypatch, named, expected):
    monkeypatch.setenv(CUDA_TRIALS_VARIABLE, named)
    trainer = build_tuned_trainer(CudaModel(tiny_model()))
    assert tried == expected
    assert cast(Any, trainer.fixed) == ("recorded" if "steps" in expected else None)
    tried.clear()
    build_tuned_trainer(PackedModel(tiny_model()))
    assert tried == []


def test_a_trial_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setenv(CUDA_TRIALS_VARIABLE, "graphs")
    with pytest.raises(ValueError, match="Choose among compiled_norms and recorded_steps"):
        read_cuda_trials()
