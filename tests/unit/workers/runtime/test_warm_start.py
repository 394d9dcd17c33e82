"""A job that begins with an earlier adapter, and one that stops early, on a real base."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.workers.training_builders import (
    RecordingSink,
    attach,
    completion_rows,
    job_spec,
    random_examples,
    training_job,
    write_jsonl,
)
from workers.protocol.job_spec import AdapterSpec, BlobRef, DataFormat, WarmStart
from workers.protocol.probes import ProbeAdapter, ProbeTask
from workers.runtime.job_sink import JobSummary
from workers.runtime.memorised_rows import count_memorised_rows
from workers.runtime.node_runtime import NodeRuntime
from workers.training.checkpoint import load_checkpoint
from workers.training.faults import SystemFault, UserFault
from workers.training.packing import Example

BLOB = BlobRef(url="/a", sha256="0" * 64, bytes=1)


@dataclass(frozen=True)
class Earlier:
    """A finished job."""

    folder: Path
    zip: Path
    summary: JobSummary


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("data") / "rows.jsonl", completion_rows(24))


@pytest.fixture(scope="module")
def earlier(base, data, tmp_path_factory) -> Earlier:
    folder = tmp_path_factory.mktemp("earlier")
    runtime = NodeRuntime(device="cpu", cache_dir=folder)
    sink, summary = train(runtime, base, data, "earlier", training={"epochs": 5})
    runtime.close()
    archive = shutil.make_archive(str(folder / "adapter"), "zip", sink.adapter_dir)
    return Earlier(sink.adapter_dir, Path(archive), summary)


def train(runtime, base, data: Path, job_id: str, start: Path | None = None, **changes: Any):
    sink = attach(runtime, job_spec(job_id, base, data, **changes), data, start=start)
    summary = sink.wait()
    assert sink.outcome == "finished", sink.reason
    return sink, summary


#: Two evaluations, before the first step and after the last.
SHORT = {"epochs": 1, "eval_every_steps": 100}


def test_a_job_begins_where_the_earlier_adapter_ended(runtime, base, data, earlier) -> None:
    cold = earlier.summary
    _, warm = train(
        runtime, base, data, "warm", earlier.zip, warm_start=WarmStart(BLOB), training=SHORT
    )
    assert warm.valid_loss_before == pytest.approx(cold.valid_loss_after, rel=1e-4)
    assert warm.valid_loss_before < cold.valid_loss_before
    # Half of the second matrices is a step back towards the base.
    scaled = WarmStart(BLOB, scale=0.5)
    _, half = train(runtime, base, data, "half", earlier.zip, warm_start=scaled, training=SHORT)
    assert warm.valid_loss_before < half.valid_loss_before < cold.valid_loss_before


def test_a_warm_start_ends_after_its_steps_or_goes_on_if_it_fell_behind(
    runtime, base, data, earlier
) -> None:
    training = {"epochs": 2, "eval_every_steps": 4}
    reached = WarmStart(BLOB, steps=4, target_loss=1e3)
    _, warm = train(runtime, base, data, "a", earlier.zip, warm_start=reached, training=training)
    assert (warm.step, warm.total_steps) == (4, 4)
    missed = WarmStart(BLOB, steps=4, target_loss=0.0)
    sink, warm = train(runtime, base, data, "b", earlier.zip, warm_start=missed, training=training)
    assert (warm.step, warm.total_steps) == (12, 12)
    assert any("at no cost to you" in line for event in sink.events for line in event.log)


def test_early_stopping_returns_the_weights_of_the_lowest_loss(
    runtime, base, data, earlier
) -> None:
    # Steps far too large: it only gets worse from what it began with.
    wild = {"epochs": 6, "learning_rate": 0.3, "early_stopping": 2, "eval_every_steps": 1}
    sink, summary = train(
        runtime, base, data, "a", earlier.zip, warm_start=WarmStart(BLOB), training=wild
    )
    assert summary.stopped_early
    assert (summary.step, summary.total_steps, summary.best_step) == (2, 36, 0)
    assert summary.valid_loss_after == summary.valid_loss_before
    kept, begun = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (sink.adapter_dir, earlier.folder)
    )
    assert all(torch.equal(kept[name], begun[name]) for name in begun)
    assert (
        "ended before its last step; weights of step 0"
        in (sink.adapter_dir / "README.md").read_text()
    )


def test_a_move_takes_the_best_weights_along(runtime, base, data) -> None:
    training = {"epochs": 15, "early_stopping": 100, "eval_every_steps": 1}
    spec = job_spec("a", base, data, training=training)
    sink = attach(runtime, spec, data, sink=RecordingSink())
    while not any(event.step >= 2 for event in sink.events):
        assert not sink.ended.wait(0.01)
    runtime.detach("a", checkpoint=True)
    sink.wait()
    path, _ = sink.checkpoints[-1]
    state = load_checkpoint(path)
    assert state.best.keys() == state.params.keys()
    assert state.progress.best_step is not None
    attach(runtime, spec, data, path)
    assert runtime.jobs() == ("a",)


@pytest.mark.parametrize("ending", [{"early_stopping": 2}, {"target_loss": 1.0}])
def test_an_early_end_without_held_out_rows_is_refused(runtime, base, data, ending) -> None:
    training = ending | {"validation_share": 0.0}
    with pytest.raises(UserFault, match="holds out none"):
        attach(runtime, job_spec("a", base, data, training=training), data)


def bad_zip(folder: Path, target: Path, damage: str) -> Path:
    weights = load_file(folder / "adapter_model.safetensors")
    name = next(name for name in weights if "lora_B" in name)
    if damage == "nan":
        weights[name][0, 0] = float("nan")
    elif damage == "missing":
        del weights[name]
    elif damage == "rank":
        weights[name] = weights[name][:, :2].contiguous()
    elif damage == "huge":
        weights[name].fill_(3e38)
    elif damage == "large":
        weights["x"] = torch.zeros(8_000_000)
    save_file(weights, target)
    with zipfile.ZipFile(target.with_suffix(".zip"), "w") as archive:
        archive.writestr("adapter_config.json", json.dumps({}))
        archive.write(target, "adapter_model.safetensors")
    if damage == "cut":
        path = target.with_suffix(".zip")
        path.write_bytes(path.read_bytes()[:400])
    return target.with_suffix(".zip")


def test_an_adapter_that_does_not_fit_the_job_is_refused_with_a_sentence(
    runtime, base, data, earlier, tmp_path
) -> None:
    spec = job_spec("warm", base, data, warm_start=WarmStart(BLOB))
    for damage, fault, words in (
        ("nan", SystemFault, "not finite numbers"),
        ("missing", UserFault, "another rank, other modules"),
        ("rank", UserFault, "another rank, other modules"),
        ("large", UserFault, "another rank, other modules"),
        ("cut", SystemFault, "cannot be read"),
    ):
        start = bad_zip(earlier.folder, tmp_path / damage, damage)
        with pytest.raises(fault, match=words):
            attach(runtime, spec, data, start=start)
    with pytest.raises(SystemFault, match="not on this node"):
        attach(runtime, spec, data)
    assert runtime.jobs() == ()


def probe_of(base, *names: str, rows: tuple[str, ...] | None = None):
    lines = tuple(json.dumps(row) for row in completion_rows(16))
    return ProbeTask(
        base_model=base,
        data_format=DataFormat.COMPLETION,
        rows=lines if rows is None else rows,
        sequence_length=128,
        adapters=tuple(ProbeAdapter(name, BLOB, AdapterSpec(rank=4, alpha=8.0)) for name in names),
    )


def probe(runtime, asked, paths):
    return runtime.probe(asked, paths, expires_at=time.time() + 60)


def test_a_probe_measures_the_base_and_each_adapter_and_leaves_nothing_behind(
    runtime, base, earlier, tmp_path
) -> None:
    damaged = bad_zip(earlier.folder, tmp_path / "nan", "nan")
    paths = {"good": earlier.zip, "damaged": damaged}
    found = probe(runtime, probe_of(base, "good", "damaged", "absent"), paths)
    good, *others = found.losses
    assert found.base_loss is not None
    assert good.loss is not None
    assert good.loss < 0.9 * found.base_loss
    assert [(one.name, one.loss) for one in others] == [("damaged", None), ("absent", None)]
    resident = runtime.resident(base)
    assert resident.model.trained == set()
    assert resident.trainer.jobs == {}
    # With no adapter the base is found again.
    assert probe(runtime, probe_of(base), {}).base_loss == pytest.approx(found.base_loss, rel=1e-5)


def test_adapters_are_probed_together_as_each_would_be_alone(
    runtime, base, earlier, tmp_path, monkeypatch
) -> None:
    huge = bad_zip(earlier.folder, tmp_path / "huge", "huge")
    names = ("good", "huge", "again")
    paths = {"good": earlier.zip, "huge": huge, "again": earlier.zip}
    alone = [probe(runtime, probe_of(base, name), paths).losses[0].loss for name in names]
    assert alone[1] is None
    model, trainer = runtime.resident(base).model, runtime.resident(base).trainer
    attach_one = model.attach

    def attach_few(job_id, *values, answers) -> None:
        assert answers
        if len(model.answering) == 2:
            raise torch.OutOfMemoryError("no room for a third")
        attach_one(job_id, *values, answers=answers)

    found = [probe(runtime, probe_of(base, *names), paths)]
    # The same in packs of a few rows, and where only two have room beside each other.
    monkeypatch.setattr(trainer, "token_budget", 100)
    found.append(probe(runtime, probe_of(base, *names), paths))
    monkeypatch.undo()
    monkeypatch.setattr(model, "attach", attach_few)
    found.append(probe(runtime, probe_of(base, *names), paths))
    for one in found:
        good, bad, again = (loss.loss for loss in one.losses)
        assert bad is None
        assert good == again == pytest.approx(alone[0], rel=1e-4)
    # Where rows are cut, losses are reported in proportion to the base's on whole rows.
    monkeypatch.undo()
    monkeypatch.setattr("workers.runtime.probe.TRAINED_MAX", 2)
    cut = probe(runtime, probe_of(base, "good"), paths)
    assert cut.base_loss == pytest.approx(found[0].base_loss, rel=1e-4)
    assert 0.5 * alone[0] < cut.losses[0].loss < 0.95 * cut.base_loss
    assert [one.base_loss for one in found] == pytest.approx([found[0].base_loss] * 3, rel=1e-4)
    assert model.answering == set()


def test_what_a_probe_cannot_measure_in_time_or_at_all_is_left_open(runtime, base, earlier) -> None:
    late = runtime.probe(probe_of(base, "good"), {"good": earlier.zip}, expires_at=time.time() - 1)
    assert [one.loss for one in late.losses] == [None]
    assert probe(runtime, probe_of(base, "good", rows=("{}",)), {}).base_loss is None


def test_rows_said_by_heart_are_counted_where_held_out_rows_do_not_explain_them() -> None:
    unseen = random_examples(5, seed=2)
    assert count_known_rows(3.0, held_out=unseen) == 3
    assert count_known_rows(0.4, held_out=unseen) == 0
    assert count_known_rows(None, held_out=unseen) == 0


def test_held_out_copies_of_training_rows_explain_no_row_said_by_heart() -> None:
    rows = random_examples(20, seed=1)
    # Held out are copies only: their loss says nothing of rows that were not seen.
    assert count_known_rows(0.05, held_out=rows[:3]) == 3
    # Four of five: what the fifth loses is hidden in the mean. Row 0 has no copy.
    [one] = random_examples(1, seed=2)
    tokens = one.trained_tokens + sum(row.trained_tokens for row in rows[1:5])
    assert count_known_rows(3.0 * one.trained_tokens / tokens, held_out=(*rows[1:5], one)) == 3
    assert count_known_rows(0.4 * one.trained_tokens / tokens, held_out=(*rows[1:5], one)) == 2


def count_known_rows(valid_loss: float | None, *, held_out: tuple[Example, ...]) -> int:
    """Of a job that knows three of its twenty rows, the first ones."""
    job = training_job("a", random_examples(20, seed=1), valid=held_out)
    job.row_losses[:] = [0.05] * 3 + [0.2] * 17
    job.progress.valid_loss_after = valid_loss
    return count_memorised_rows(job)
