"""Bad input and bad luck: who is told what, and that nobody else notices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.unit.workers.training_builders import (
    RecordingSink,
    admit,
    attach,
    completion_rows,
    job_spec,
    random_examples,
    run_steps,
    tiny_model,
    trainer,
    training_job,
    write_jsonl,
)
from workers.protocol.job_spec import BaseModelRef, DataFormat
from workers.protocol.reports import Fault
from workers.runtime.checkpoint_pipe import list_checkpoints
from workers.runtime.node_runtime import NodeRuntime
from workers.training.checkpoint import CorruptCheckpointError, load_checkpoint
from workers.training.faults import SystemFault, UserFault
from workers.training.fused_trainer import FusedTrainer
from workers.training.step_results import EvaluationResult, StepFailure


def solo_curve(seed: int, steps: int, **changes) -> list[float]:
    fused = trainer(tiny_model())
    admit(fused, training_job("solo", random_examples(24, seed=seed), **changes))
    return run_steps(fused, steps)["solo"]


def drain(fused: FusedTrainer, rounds: int) -> tuple[dict[str, list[float]], list[StepFailure]]:
    """Train on through failures, removing who failed, as the runtime does."""
    curves: dict[str, list[float]] = {name: [] for name in fused.jobs}
    failures: list[StepFailure] = []
    for _ in range(rounds):
        for result in fused.round():
            if isinstance(result, StepFailure):
                failures.append(result)
                fused.remove(result.job_id)
            else:
                curves[result.job_id].append(result.loss)
    return curves, failures


@pytest.mark.parametrize("form", ["segments", "dense", "grouped"])
def test_a_diverging_job_fails_alone_and_says_why(form, monkeypatch):
    fused = trainer(tiny_model())
    monkeypatch.setattr(fused.model, "choose_form", lambda: form)
    admit(fused, training_job("good", random_examples(24, seed=1)))
    wild = {"training": {"learning_rate": 1.0}, "adapter": {"alpha": 1e30}}
    admit(fused, training_job("wild", random_examples(24, seed=2), **wild))
    admit(fused, training_job("fine", random_examples(24, seed=3)))
    curves, failures = drain(fused, 12)
    assert [failure.job_id for failure in failures] == ["wild"]
    assert isinstance(failures[0].fault, UserFault)
    assert "Lower the learning rate" in str(failures[0].fault)
    for name, seed in (("good", 1), ("fine", 3)):
        assert len(curves[name]) >= 8
        alone = solo_curve(seed, len(curves[name]))
        np.testing.assert_allclose(curves[name], alone, rtol=1e-5)


@pytest.mark.parametrize("form", ["segments", "dense"])
def test_a_gradient_that_is_not_finite_is_its_own_jobs_fault_only(form, monkeypatch):
    fused = trainer(tiny_model())
    monkeypatch.setattr(fused.model, "choose_form", lambda: form)
    for name in ("a", "b", "c"):
        admit(fused, training_job(name, random_examples(24, seed=ord(name))))
    run_steps(fused, 2)
    layer = fused.model.layers["model.layers.1.mlp.down_proj"]
    real = type(layer).forward

    def poisoned(self, x):
        out = real(self, x)
        pack = self.stream.pack
        span = next((s for s in pack.segments if s.job_id == "b"), None) if pack else None
        if self is layer and span is not None and out.requires_grad:
            # the loss stays finite, b's gradient does not
            out.register_hook(lambda g: g.index_fill(1, torch.tensor([span.start]), float("nan")))
        return out

    monkeypatch.setattr(type(layer), "forward", poisoned)
    curves, failures = drain(fused, 9)
    assert [failure.job_id for failure in failures] == ["b"]
    assert "gradient" in str(failures[0].fault)
    for name in ("a", "c"):
        alone = solo_curve(ord(name), 2 + len(curves[name]))[2:]
        assert len(alone) >= 4
        np.testing.assert_allclose(curves[name], alone, rtol=1e-5)


def test_a_row_that_breaks_the_pack_ends_its_own_job_only():
    fused = trainer(tiny_model())
    admit(fused, training_job("good", random_examples(24, seed=1)))
    broken = random_examples(24, seed=2)
    # an id that the embeddings lack
    broken[5].sequences[0].tokens[3] = 10_000
    admit(fused, training_job("broken", broken))
    admit(fused, training_job("fine", random_examples(24, seed=3)))
    curves, failures = drain(fused, 14)
    assert [failure.job_id for failure in failures] == ["broken"]
    assert isinstance(failures[0].fault, SystemFault)
    assert "failed on this job" in str(failures[0].fault)
    for name, seed in (("good", 1), ("fine", 3)):
        assert len(curves[name]) >= 8
        np.testing.assert_allclose(curves[name], solo_curve(seed, len(curves[name])), rtol=1e-5)


def test_a_lost_device_is_no_jobs_fault(monkeypatch):
    fused = trainer(tiny_model())
    admit(fused, training_job("a", random_examples(8, seed=1)))
    admit(fused, training_job("b", random_examples(8, seed=2)))

    def lose_device(*_args, **_options):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(fused.model, "streaming", lose_device)
    with pytest.raises(torch.AcceleratorError):
        fused.round()


def test_after_a_lost_device_the_runtime_says_so(runtime, base, tmp_path, monkeypatch):
    def lose_device(_trainer):
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(FusedTrainer, "round", lose_device)
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(8))
    sink = attach(runtime, job_spec("job", base, data), data)
    sink.wait()
    assert sink.fault is Fault.SYSTEM
    assert runtime.device_lost.wait(10)


def no_room_on_cuda() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory (test)")


def no_room_on_a_cpu() -> None:
    """What PyTorch itself says then, for want of 4 exabytes."""
    torch.empty(1 << 60)


def limit_tokens(
    fused: FusedTrainer,
    most: int,
    *,
    only: str | None = None,
    refuse: Callable[[], None] = no_room_on_cuda,
) -> list[int]:
    """A device whose memory holds packs of ``most`` tokens (or only one job's are short)."""
    seen: list[int] = []

    def check(_module, _args, kwargs):
        pack = kwargs["pack"]
        seen.append(pack.tokens)
        jobs = {segment.job_id for segment in pack.segments}
        if pack.tokens > most and (only is None or only in jobs):
            refuse()

    fused.model.backbone.register_forward_pre_hook(check, with_kwargs=True)
    return seen


@pytest.mark.parametrize("refuse", [no_room_on_cuda, no_room_on_a_cpu])
def test_out_of_memory_halves_the_offenders_micro_batch_and_nobodys_curve_changes(refuse):
    fused = trainer(tiny_model())
    big = {"training": {"batch_size": 12}}
    admit(fused, training_job("big", random_examples(24, seed=1, shortest=20), **big))
    admit(fused, training_job("small", random_examples(24, seed=2)))
    seen = limit_tokens(fused, 130, refuse=refuse)
    curves = run_steps(fused, 4)
    assert max(seen) > 130
    assert fused.jobs["big"].micro_tokens is not None
    assert max(seen[-4:]) <= 130
    assert fused.jobs["small"].micro_tokens is None
    alone = trainer(tiny_model())
    admit(alone, training_job("big", random_examples(24, seed=1, shortest=20), **big))
    np.testing.assert_allclose(curves["big"], run_steps(alone, 4)["big"], rtol=1e-5)
    np.testing.assert_allclose(curves["small"], solo_curve(2, 4), rtol=1e-5)


def test_jobs_that_fit_alone_but_not_together_take_turns():
    fused = trainer(tiny_model())
    for name in ("a", "b", "c"):
        rows = random_examples(24, seed=ord(name), shortest=20, longest=20)
        admit(fused, training_job(name, rows))
    limit_tokens(fused, 100)
    curves = run_steps(fused, 4)
    assert fused.token_budget <= 4096 // 2
    assert all(len(curve) == 4 for curve in curves.values())
    assert all(job.micro_tokens is None for job in fused.jobs.values())


def test_an_evaluation_that_runs_out_of_memory_goes_on_in_smaller_packs():
    fused = trainer(tiny_model())
    rows = random_examples(24, seed=1)
    job = training_job("a", rows[:8], valid=rows[8:])
    admit(fused, job)

    def evaluate() -> float:
        fused.start_evaluation("a")
        while (result := fused.evaluate_next()) is None:
            pass
        assert isinstance(result, EvaluationResult)
        return result.found.loss

    whole = evaluate()
    seen = limit_tokens(fused, 100)
    assert evaluate() == pytest.approx(whole, rel=1e-6)
    assert max(seen) > 100 >= max(seen[-2:])


def test_a_row_that_never_fits_ends_its_own_job_only():
    fused = trainer(tiny_model())
    admit(fused, training_job("huge", random_examples(8, seed=1, shortest=60, longest=60)))
    admit(fused, training_job("small", random_examples(24, seed=2)))
    limit_tokens(fused, 50, only="huge")
    curves, failures = drain(fused, 14)
    assert [failure.job_id for failure in failures] == ["huge"]
    assert isinstance(failures[0].fault, SystemFault)
    assert "60 tokens" in str(failures[0].fault)
    assert len(curves["small"]) >= 6
    np.testing.assert_allclose(curves["small"], solo_curve(2, len(curves["small"])), rtol=1e-5)


def paused_checkpoints(runtime, base, tmp_path, name="a") -> tuple:
    """A job with two checkpoints on disk, taken off the node."""
    data = write_jsonl(tmp_path / f"{name}.jsonl", completion_rows(40))
    spec = job_spec(name, base, data, training={"epochs": 40})
    sink = attach(runtime, spec, data)
    runtime.checkpoint(name)
    assert sink.on_checkpoint.wait(60)
    sink.on_checkpoint.clear()
    runtime.detach(name, checkpoint=True)
    sink.wait()
    older, newer = sorted(list_checkpoints(tmp_path / "cache" / name))
    return spec, data, older, newer


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "pickle"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(runtime, base, tmp_path, damage):
    spec, data, older, newer = paused_checkpoints(runtime, base, tmp_path)
    content = bytearray(newer.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-100] ^= 1
    elif damage == "empty":
        content.clear()
    else:
        content[:] = b"\x80\x04cos\nsystem\n"
    newer.write_bytes(content)
    with pytest.raises(CorruptCheckpointError):
        load_checkpoint(newer)
    sink = attach(runtime, spec, data, newer, older)
    assert sink.events[0].step == load_checkpoint(older).progress.step
    assert any("passed over" in line for line in sink.events[0].log)
    # the next one written stands beside the whole one, not in its place
    runtime.detach(spec.job_id, checkpoint=True)
    sink.wait()
    kept = list_checkpoints(older.parent)
    assert sink.summary is not None
    assert len(kept) == 2
    assert kept[1] == older
    assert load_checkpoint(kept[0]).progress.step == sink.summary.step


def test_a_run_that_begins_afresh_keeps_its_own_checkpoints(runtime, base, tmp_path):
    """Though an earlier run of other settings got further and left its own behind."""
    _, data, _, newer = paused_checkpoints(runtime, base, tmp_path)
    late = newer.with_name("step-99999999.safetensors")
    newer.rename(late)
    spec = job_spec("a", base, data, training={"epochs": 41})
    sink = attach(runtime, spec, data)
    runtime.checkpoint("a")
    assert sink.on_checkpoint.wait(60)
    first = sink.checkpoints[0][0]
    assert list_checkpoints(first.parent)[:2] == [first, late]
    runtime.detach("a", checkpoint=True)
    sink.wait()
    second = sink.checkpoints[-1][0]
    assert list_checkpoints(first.parent) == [second, first]


def test_what_a_run_of_other_settings_left_is_never_continued(runtime, base, tmp_path):
    _, data, older, newer = paused_checkpoints(runtime, base, tmp_path)
    asked = tmp_path / "step-00000007.safetensors"
    asked.write_bytes(b"cut")
    other = job_spec("a", base, data, training={"epochs": 41})
    sink = attach(runtime, other, data, asked, newer, older)
    assert sink.events[0].step == 0
    assert any("starts again from step 0" in line for line in sink.events[0].log)
    assert {older, newer} <= set(list_checkpoints(older.parent))
    runtime.detach("a", checkpoint=False)


def test_with_no_whole_checkpoint_left_the_job_starts_again_and_says_so(runtime, base, tmp_path):
    spec, data, older, newer = paused_checkpoints(runtime, base, tmp_path)
    for path in (older, newer):
        path.write_bytes(b"not a checkpoint")
    sink = attach(runtime, spec, data, newer, older)
    assert sink.events[0].step == 0
    assert any("starts again from step 0" in line for line in sink.events[0].log)
    runtime.detach(spec.job_id, checkpoint=False)


def test_a_checkpoint_of_other_settings_is_refused(runtime, base, tmp_path):
    _, data, _, newer = paused_checkpoints(runtime, base, tmp_path)
    other = job_spec("a", base, data, training={"epochs": 41})
    with pytest.raises(SystemFault, match="other settings"):
        attach(runtime, other, data, newer)
    assert runtime.jobs() == ()


def test_a_diverged_job_keeps_its_last_good_checkpoint(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(40))
    changes = {"epochs": 500, "learning_rate": 1e-4}
    spec = job_spec("a", base, data, training=changes)
    sink = attach(runtime, spec, data)
    runtime.checkpoint("a")
    assert sink.on_checkpoint.wait(60)
    resident = runtime.resident(base)
    ruined = "model.layers.0.mlp.up_proj"
    stack = resident.model.layers[ruined].trained
    runtime._commands.call(lambda: stack.B_RO.data.fill_(float("inf")))
    sink.wait()
    assert sink.outcome == "failed"
    assert sink.fault is Fault.USER
    assert sink.summary is not None
    assert sink.summary.checkpoint_path is not None
    good = load_checkpoint(sink.summary.checkpoint_path)
    assert all(tensor.isfinite().all() for tensor in good.params.values())
    assert runtime.jobs() == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adapter": {"rank": 0}}, "adapter.rank is 0; give a value from 1 to 512"),
        ({"adapter": {"dropout": 1.0}}, "adapter.dropout is 1.0; give .* at least 0 and below 1"),
        ({"adapter": {"target_modules": ("nowhere",)}}, "no projection called 'nowhere'"),
        ({"training": {"learning_rate": 0.0}}, "training.learning_rate is 0.0; give a value from"),
        ({"training": {"schedule": "steps"}}, "linear, cosine, constant"),
        ({"training": {"epochs": 0}}, "training.epochs is 0; give a value from 1 to 1000"),
        (
            {"training": {"sequence_length": 1}},
            "sequence_length is 1; give a value from 2",
        ),
    ],
)
def test_settings_no_run_can_have_are_refused_before_the_start(
    runtime, base, tmp_path, changes, words
):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(8))
    with pytest.raises(UserFault, match=words):
        attach(runtime, job_spec("a", base, data, **changes), data)
    assert runtime.jobs() == ()


def test_faulty_lines_are_named_unless_they_were_agreed_to_be_skipped(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(8))
    data.write_text(data.read_text() + "{broken\n" + '{"prompt": "x", "completion": ""}\n')
    with pytest.raises(UserFault, match=r"2 lines .* line 9: .*line 10: "):
        attach(runtime, job_spec("a", base, data), data)
    sink = attach(runtime, job_spec("a", base, data, skip_lines=(9, 10)), data)
    assert sink.wait().samples_done == 14
    assert sink.outcome == "finished"


@pytest.mark.parametrize("rows", [1, 2])
def test_one_row_is_enough_to_train_on(runtime, base, tmp_path, rows):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(rows))
    sink = attach(runtime, job_spec("a", base, data), data)
    summary = sink.wait()
    assert sink.outcome == "finished", sink.reason
    assert summary.samples_done == 2
    assert (summary.valid_loss_after is None) is (rows == 1)


def test_a_job_that_cannot_fit_is_refused_and_the_running_one_goes_on(base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(40))
    small = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache", memory_limit_gb=0.058)
    try:
        first = attach(small, job_spec("a", base, data, training={"epochs": 20}), data)
        with pytest.raises(SystemFault, match=r"does not fit: base and jobs need 0\.\d+ GB"):
            attach(small, job_spec("b", base, data, adapter={"rank": 128, "alpha": 1.0}), data)
        assert small.jobs() in (("a",), ())
        assert first.wait().step == 180
        assert first.outcome == "finished"
    finally:
        small.close()


def test_a_model_that_cannot_be_trained_is_refused_with_what_is_missing(runtime, tmp_path):
    from transformers import T5Config

    T5Config().save_pretrained(tmp_path / "t5")
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(8))
    ref = BaseModelRef(name="t5", source=str(tmp_path / "t5"))
    with pytest.raises(UserFault, match="type 't5' cannot be trained here: this one has an enc"):
        attach(runtime, job_spec("a", ref, data), data)


def test_a_base_that_is_not_there_is_the_nodes_fault(runtime, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(8))
    ref = BaseModelRef(name="gone", source=str(tmp_path / "gone"))
    with pytest.raises(SystemFault, match="cannot be loaded"):
        attach(runtime, job_spec("a", ref, data), data)
    assert runtime.jobs() == ()


def test_the_same_job_twice_and_an_unknown_one(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(40))
    spec = job_spec("a", base, data, training={"epochs": 100})
    attach(runtime, spec, data)
    with pytest.raises(SystemFault, match="already on this node"):
        attach(runtime, spec, data)
    runtime.detach("nobody", checkpoint=True)
    runtime.checkpoint("nobody")
    assert runtime.jobs() == ("a",)
    runtime.detach("a", checkpoint=False)
    assert runtime.jobs() == ()


def test_a_sink_that_raises_does_not_stop_the_others(runtime, base, tmp_path):
    class Broken(RecordingSink):
        def progress(self, event):
            raise RuntimeError("the network is gone")

    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(8))
    broken = Broken()
    runtime.attach(
        job=job_spec("a", base, data),
        data_path=data,
        validation_path=None,
        sink=broken,
    )
    other = attach(runtime, job_spec("b", base, data), data)
    other.wait()
    broken.wait()
    assert (broken.outcome, other.outcome) == ("finished", "finished")


def test_a_closed_runtime_refuses_new_jobs(base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(8))
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache")
    runtime.close()
    runtime.close()
    with pytest.raises(SystemFault, match="closed"):
        attach(runtime, job_spec("a", base, data), data)


def test_the_wrong_format_is_refused(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(8))
    with pytest.raises(UserFault, match="cannot be read"):
        attach(runtime, job_spec("a", base, data, data_format=DataFormat.CHAT), data)
