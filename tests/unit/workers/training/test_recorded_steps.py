"""Steps of fixed shape: the same numbers as plain ones, whatever else is in the buffers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.workers.training.tape import Tape
from tests.unit.workers.training_builders import (
    admit,
    random_examples,
    run_steps,
    tiny_model,
    trainer,
    training_job,
)
from workers.training import recorded_steps
from workers.training.fused_trainer import FusedTrainer
from workers.training.graph_runners import RepeatRunner
from workers.training.objective import compute_sequence_nll
from workers.training.packed_model import PackedModel
from workers.training.packing import Pack, PackShare, build_pack
from workers.training.recorded_step import RecordedStep, StepShape
from workers.training.recorded_steps import RecordedSteps, record_steps_if_faster
from workers.training.step_results import StepFailure

CPU = torch.device("cpu")
#: Rank, dropout and targets of each job on the model.
ADAPTERS = {
    "a": {"rank": 4, "dropout": 0.0},
    "b": {"rank": 8, "dropout": 0.2, "target_modules": ("q_proj", "down_proj")},
    "c": {"rank": 2, "dropout": 0.0},
}


def loaded_model(family: str = "llama", *, only: tuple[str, ...] = ()) -> PackedModel:
    """A model with adapters whose second half is not zero, so that every gradient counts."""
    model = PackedModel(tiny_model(family))
    model.even_slots = True
    for seed, (name, settings) in enumerate(ADAPTERS.items()):
        changes = dict(settings)
        if family == "gpt2" and "target_modules" in changes:
            changes["target_modules"] = ("c_attn", "c_fc")
        spec = training_job(name, random_examples(2, seed=0), adapter=changes).spec.adapter
        values = model.draw_initial_values(spec, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        for key, value in values.items():
            if key.endswith("lora_B"):
                value.normal_(std=0.1, generator=generator)
        model.attach(name, spec, values)
    return model


def pack_of(names: str, *, rows: int = 3, seed: int = 0, drops: bool = True) -> Pack:
    shares = [
        PackShare(
            name,
            random_examples(rows, seed=seed + index),
            0,
            step=1,
            seed=index,
            dropout=ADAPTERS[name]["dropout"] if drops else 0.0,
        )
        for index, name in enumerate(names)
    ]
    return build_pack(shares, device=CPU)


def weights_of(pack: Pack) -> list[float]:
    return [1.0 / (3 + index) for index in range(len(pack.shares))]


def taken_gradients(model: PackedModel) -> dict[str, torch.Tensor]:
    """Every job's gradients, which are zero afterwards."""
    found = {}
    for job_id in model.slots:
        for name, _, grad in model.tensors(job_id):
            found[f"{job_id}/{name}"] = grad.clone()
            grad.zero_()
    return found


def plain_pass(model: PackedModel, pack: Pack, weights: list[float]):
    counts = [len(share.examples) for share in pack.shares]
    weight_S = torch.tensor(np.repeat(weights, counts), dtype=torch.float32)
    with model.streaming(pack, form="dense"):
        nll_S = compute_sequence_nll(model, pack, model.hidden(pack))
        (nll_S * weight_S).sum().backward()
    return nll_S.detach(), taken_gradients(model)


def fixed_pass(step: RecordedStep, pack: Pack, weights: list[float]):
    step.load(pack, weights)
    step.compute()
    return step.nll_S[: len(pack.starts) - 1].clone(), taken_gradients(step.model)


def assert_same_bits(left, right) -> None:
    assert torch.equal(left[0], right[0])
    assert left[1].keys() == right[1].keys()
    assert all(torch.equal(left[1][name], right[1][name]) for name in left[1])


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("form", ["dense", "grouped"])
@pytest.mark.parametrize("drops", [False, True])
def test_a_fixed_step_equals_the_plain_pass_in_losses_and_gradients(family, form, drops):
    model = loaded_model(family)
    pack = pack_of("abc", drops=drops)
    step = RecordedStep(model, StepShape.of(pack, context=96), form=form)
    plain = plain_pass(model, pack, weights_of(pack))
    fixed = fixed_pass(step, pack, weights_of(pack))
    torch.testing.assert_close(fixed[0], plain[0], rtol=1e-5, atol=1e-5)
    for name, grad in plain[1].items():
        torch.testing.assert_close(fixed[1][name], grad, rtol=1e-4, atol=1e-5)
    assert all(grad.abs().max() > 0 for grad in plain[1].values())


def test_a_shape_wastes_at_most_an_eighth_and_holds_the_pack():
    for rows in range(1, 40):
        pack = pack_of("ab", rows=rows)
        shape = StepShape.of(pack, context=96)
        assert pack.tokens <= shape.tokens <= max(1.125 * pack.tokens + 1, pack.tokens + 16)
        assert pack.longest <= shape.longest <= 96
        assert pack.predict_M.numel() <= shape.predictions
        padding = -(-(shape.tokens - pack.tokens) // shape.longest)
        # one sequence is left over, for predictions that are padding
        assert len(pack.starts) - 1 + padding < shape.sequences


def test_packs_of_like_size_share_a_shape():
    shapes = {StepShape.of(pack_of("ab", rows=16, seed=seed), context=96) for seed in range(60)}
    assert len(shapes) <= 8


def test_what_the_buffers_held_before_changes_no_bit():
    model = loaded_model()
    big, small = pack_of("abc", rows=6), pack_of("bc", rows=5, seed=40)
    shape = StepShape.of(big, context=96)
    fresh = fixed_pass(RecordedStep(model, shape, form="dense"), small, weights_of(small))
    used = RecordedStep(model, shape, form="dense")
    fixed_pass(used, big, weights_of(big))
    assert_same_bits(fixed_pass(used, small, weights_of(small)), fresh)


def test_what_the_padding_holds_changes_no_bit():
    model = loaded_model()
    pack = pack_of("abc", rows=4)
    step = RecordedStep(model, StepShape.of(pack_of("abc", rows=7), context=96), form="dense")
    before = fixed_pass(step, pack, weights_of(pack))
    step.load(pack, weights_of(pack))
    step.pack.tokens_T[pack.tokens :] = 77
    step.pack.positions_T[pack.tokens :] = 5
    step.pack.targets_M[pack.predict_M.numel() :] = 99
    step.compute()
    assert_same_bits((step.nll_S[: len(before[0])].clone(), taken_gradients(model)), before)


def test_a_neighbour_in_the_free_places_changes_no_bit():
    model = loaded_model()
    alone, both = pack_of("b", rows=6), pack_of("bc", rows=6)
    step = RecordedStep(model, StepShape.of(both, context=96), form="dense")
    one = fixed_pass(step, alone, weights_of(alone))
    two = fixed_pass(step, both, weights_of(both))
    assert torch.equal(one[0], two[0][: len(one[0])])
    assert all(torch.equal(one[1][name], two[1][name]) for name in one[1] if name.startswith("b/"))
    assert any(grad.any() for name, grad in two[1].items() if name.startswith("c/"))
    assert not any(grad.any() for name, grad in one[1].items() if name.startswith("c/"))


def test_a_cleared_step_adds_zero_to_every_gradient():
    model = loaded_model()
    pack = pack_of("abc")
    step = RecordedStep(model, StepShape.of(pack, context=96), form="dense")
    step.load(pack, weights_of(pack))
    step.clear()
    step.compute()
    assert not any(grad.any() for grad in taken_gradients(model).values())


def test_a_recording_does_what_the_step_does_without_running_its_python():
    model = loaded_model()
    first, second = pack_of("abc"), pack_of("abc", seed=7)
    shape = StepShape.of(pack_of("abc", rows=6), context=96)
    step = RecordedStep(model, shape, form="dense")
    step.load(first, weights_of(first))
    step.clear()
    tape = Tape()
    run = tape.record(step.compute)
    for pack in (first, second, first):
        expected = fixed_pass(RecordedStep(model, shape, form="dense"), pack, weights_of(pack))
        step.load(pack, weights_of(pack))
        run()
        nll_S = step.nll_S[: len(expected[0])].clone()
        assert_same_bits((nll_S, taken_gradients(model)), expected)


def mixed_jobs():
    settings = (
        {"adapter": {"rank": 4, "dropout": 0.1}, "training": {"batch_size": 4}},
        {"adapter": {"rank": 8, "target_modules": ("q_proj",)}, "training": {"batch_size": 2}},
        {"adapter": {"rank": 2}, "training": {"batch_size": 7, "schedule": "linear"}},
    )
    for index, setting in enumerate(settings):
        training = setting["training"] | {"epochs": 6, "seed": index}
        rows = random_examples(10 * training["batch_size"], seed=index)
        yield training_job(f"job-{index}", rows, adapter=setting["adapter"], training=training)


def recording_trainer(**changes) -> FusedTrainer:
    fused = trainer(tiny_model(), **changes)
    fused.fixed = RecordedSteps(fused.model, Tape(), form="dense", after=0)
    return fused


def test_recorded_curves_equal_solo_runs_while_jobs_come_and_go():
    solo = {}
    for job in mixed_jobs():
        alone = trainer(tiny_model())
        admit(alone, job)
        solo |= run_steps(alone, 40)
    fused = recording_trainer()
    assert fused.fixed is not None
    curves = {name: [] for name in solo}
    jobs = list(mixed_jobs())
    admit(fused, jobs[0])
    for turn in range(40):
        # the second needs larger stacks, which move; the third finds room
        if turn in (5, 12):
            admit(fused, jobs[1 if turn == 5 else 2])
        for result in fused.round():
            curves[result.job_id].append(result.loss)
    assert [len(curve) for curve in curves.values()] == [40, 35, 28]
    for name, curve in curves.items():
        np.testing.assert_allclose(curve, solo[name][: len(curve)], rtol=1e-5)
    # all but the first pack after each arrival, which counts bytes
    assert fused.fixed.replays == 37
    assert not fused.fixed.failed


def test_a_recording_is_dropped_when_a_stack_moves_and_kept_when_a_slot_is_free():
    fused = recording_trainer()
    assert fused.fixed is not None
    same = {"training": {"batch_size": 2, "epochs": 50}}
    rows = random_examples(8, seed=1, shortest=12, longest=12)
    for name in ("a", "b"):
        admit(fused, training_job(name, rows, **same))
    run_steps(fused, 4)
    shapes = fused.fixed.shapes
    tape = fused.fixed.runner
    assert isinstance(tape, Tape)
    assert len(shapes) == tape.recorded == 1
    fused.remove("b")
    admit(fused, training_job("c", rows, **same))
    run_steps(fused, 4)
    assert (fused.fixed.shapes, tape.recorded) == (shapes, 1)
    admit(fused, training_job("d", rows, adapter={"rank": 16}, **same))
    run_steps(fused, 4)
    assert tape.recorded == 2
    assert shapes[0] not in fused.fixed.shapes


class _Broken(RepeatRunner):
    name = "broken"

    def record(self, action):
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_recording_that_fails_is_told_and_training_goes_on_the_plain_way(caplog):
    curves = []
    for runner in (None, _Broken()):
        fused = trainer(tiny_model())
        if runner is not None:
            fused.fixed = RecordedSteps(fused.model, runner, form="dense", after=0)
        for job in mixed_jobs():
            admit(fused, job)
        curves.append(run_steps(fused, 8))
    for name, curve in curves[0].items():
        np.testing.assert_allclose(curves[1][name], curve, rtol=1e-6)
    told = [r.message for r in caplog.records if "not permitted" in r.message]
    assert told == [
        "steps are not recorded here (broken): operation not permitted when stream is capturing"
    ]


def test_a_loss_that_is_not_finite_in_a_recording_ends_its_own_job_only():
    def run(*, poisoned: bool):
        fused = recording_trainer()
        for name in ("good", "bad"):
            rows = random_examples(16, seed=3)
            admit(fused, training_job(name, rows, training={"batch_size": 4, "epochs": 9}))
        curve, ended = [], []
        while len(curve) < 12:
            if poisoned and len(curve) == 4 and "bad" in fused.jobs:
                next(iter(fused.model.tensors("bad")))[1].fill_(float("nan"))
            for result in fused.round():
                if isinstance(result, StepFailure):
                    ended.append(result)
                    fused.remove(result.job_id)
                elif result.job_id == "good":
                    curve.append(result.loss)
        return curve, ended

    clean, none = run(poisoned=False)
    curve, ended = run(poisoned=True)
    assert not none
    assert [failed.job_id for failed in ended] == ["bad"]
    assert "The loss was no longer a finite number at step 5" in str(ended[0].fault)
    np.testing.assert_allclose(curve, clean, rtol=1e-5)


def test_soft_prompts_go_the_plain_way():
    from workers.protocol.job_spec import AdapterKind

    fused = recording_trainer()
    assert fused.fixed is not None
    admit(
        fused,
        training_job(
            "soft",
            random_examples(8, seed=1),
            adapter={"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 3},
        ),
    )
    assert len(run_steps(fused, 2)["soft"]) == 2
    assert fused.fixed.replays == 0


class _Clock:
    """Seconds that pass by one at each look, and as a runner says."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


class _Timed(RepeatRunner):
    """Records on a clock: a replay takes so many seconds longer than the plain way."""

    def __init__(self, clock: _Clock, extra_s: float, factor: float = 1.0) -> None:
        self.clock, self.extra_s, self.factor = clock, extra_s, factor
        self.grads: list[torch.Tensor] = []

    def record(self, action):
        action()

        def run() -> None:
            action()
            for grad in self.grads:
                grad.mul_(self.factor)
            self.clock.now += self.extra_s

        return run


@pytest.mark.parametrize(("extra_s", "chosen"), [(-0.5, True), (0.0, False), (0.5, False)])
def test_the_faster_of_plain_and_recorded_is_kept(extra_s, chosen, monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(recorded_steps, "time", clock)
    model = PackedModel(tiny_model())
    found = record_steps_if_faster(model, _Timed(clock, extra_s), form="dense")
    assert (found is not None) is chosen
    assert model.even_slots is chosen
    assert not model.slots
    assert all(layer.A_NRD is None for layer in model.layers.values())


def test_a_recording_with_other_numbers_is_not_used(caplog, monkeypatch):
    model = PackedModel(tiny_model())
    monkeypatch.setattr(RecordedStep, "clear", lambda self: None)
    original = RecordedStep.compute

    def off(self):
        original(self)
        self.nll_S.mul_(1.001)

    monkeypatch.setattr(RecordedStep, "compute", off)
    assert record_steps_if_faster(model, RepeatRunner(), form="dense") is None
    assert "its numbers are off by 1.0e-03" in caplog.text


def test_a_device_that_cannot_record_trains_the_plain_way(caplog):
    model = PackedModel(tiny_model())
    assert record_steps_if_faster(model, _Broken(), form="dense") is None
    assert "recording failed" in caplog.text
    assert model.even_slots is False
