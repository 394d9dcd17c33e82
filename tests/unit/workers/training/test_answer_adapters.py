"""Adapters that answer: kept within a budget, apart from those that train."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.unit.workers.training_builders import (
    admit,
    random_examples,
    tiny_model,
    trainer,
    training_job,
)
from workers.protocol.job_bytes import count_answer_adapter_bytes
from workers.protocol.job_spec import AdapterSpec, BlobRef
from workers.protocol.pass_bytes import DeviceProfile
from workers.protocol.probes import ProbeAdapter
from workers.training.answer_adapters import AnswerAdapters, Values
from workers.training.faults import SystemFault
from workers.training.packed_model import PackedModel

SPEC = AdapterSpec(rank=4)


class Reader:
    """Reads adapters, and knows how many it read."""

    def __init__(self, model: PackedModel) -> None:
        self.model = model
        self.reads = 0

    def __call__(self) -> Values:
        self.reads += 1
        return self.model.draw_initial_values(SPEC, seed=0)


def named(name: str) -> ProbeAdapter:
    return ProbeAdapter(name, BlobRef(url="", sha256=f"of {name}", bytes=0), SPEC)


@pytest.fixture
def model() -> PackedModel:
    return PackedModel(tiny_model())


def build(model: PackedModel, *, room: float) -> AnswerAdapters:
    """With room for so many adapters of ``SPEC``."""
    one = count_answer_adapter_bytes(model.shape, DeviceProfile("cpu", 4), SPEC)
    return AnswerAdapters(model, limit_bytes=room * one)


def test_an_adapter_stays_between_answers_and_is_read_once(model):
    adapters, read = build(model, room=2), Reader(model)
    name = adapters.take(named("a"), read)
    adapters.release(name)
    again = replace(named("a"), blob=BlobRef(url="another", sha256="of a", bytes=0))
    assert adapters.take(again, read) == name
    assert read.reads == 1
    assert adapters.holds(named("a"))
    assert not adapters.holds(replace(named("a"), scale=2.0))


def test_the_longest_unused_leaves_first_and_those_in_use_stay(model):
    adapters, read = build(model, room=2), Reader(model)
    for each in ("a", "b"):
        adapters.release(adapters.take(named(each), read))
    adapters.release(adapters.take(named("a"), read))
    used = adapters.take(named("c"), read)
    assert [adapters.holds(named(each)) for each in "abc"] == [True, False, True]
    adapters.take(named("d"), read)
    assert [adapters.holds(named(each)) for each in "acd"] == [False, True, True]
    with pytest.raises(SystemFault, match=r"0\.000 GB left"):
        adapters.take(named("e"), read)
    assert len(model.answering) == 2
    adapters.release(used)
    assert adapters.drop_unused()
    assert not adapters.drop_unused()
    assert [adapters.holds(named(each)) for each in "cd"] == [False, True]


def test_what_is_counted_is_what_is_held(model):
    adapters = build(model, room=3)
    for each in "abc":
        adapters.take(named(each), Reader(model))
    parameters = [
        parameter for layer in model.layers.values() for parameter in layer.answering.parameters()
    ]
    assert sum(one.untyped_storage().nbytes() for one in parameters) == adapters.held_bytes
    assert all(one.grad is None and not one.requires_grad for one in parameters)


def test_a_question_leaves_the_trainers_matrices_as_they_are():
    fused = trainer(tiny_model())
    admit(fused, training_job("a", random_examples(8, seed=1), adapter={"rank": 4}))
    before = {name: layer.trained.A_RD for name, layer in fused.model.layers.items()}
    build(fused.model, room=1).take(named("b"), Reader(fused.model))
    for name, layer in fused.model.layers.items():
        assert layer.trained.A_RD is before[name]
        assert isinstance(layer.answering.A_RD, torch.Tensor)
