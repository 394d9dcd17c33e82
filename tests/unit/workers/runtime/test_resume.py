"""Moves: the curve after a checkpoint, in another process, equals the uninterrupted one."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.unit.workers.training_builders import (
    RecordingSink,
    attach,
    completion_rows,
    save_tiny_base,
    write_jsonl,
)
from workers.models import DATASETS
from workers.runtime import thread_choice
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.train_command import main, plan_jobs, read_config
from workers.training import product_choice
from workers.training.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[4]

JOBS = (
    {"name": "dropping", "adapter": {"dropout": 0.25}, "training": {"batch_size": 3}},
    {"name": "plain", "adapter": {"rank": 2}, "training": {"schedule": "linear", "seed": 9}},
    {
        "name": "soft",
        "adapter": {"kind": "soft_prompt", "virtual_tokens": 4, "init_text": "What colour?"},
    },
    {"name": "pairs", "data": "pairs.jsonl"},
)


@pytest.fixture
def config(tmp_path) -> Path:
    save_tiny_base(tmp_path / "base")
    write_jsonl(tmp_path / "rows.jsonl", completion_rows(30))
    pairs = [{"prompt": f"Q{i}?", "chosen": " blue", "rejected": " red"} for i in range(20)]
    write_jsonl(tmp_path / "pairs.jsonl", pairs)
    path = tmp_path / "config.yaml"
    jobs = [{"data": "rows.jsonl"} | job for job in JOBS]
    path.write_text(
        yaml.safe_dump(
            {
                "base_model": "base",
                "reproducible": True,
                "adapter": {"rank": 4, "alpha": 8.0},
                "training": {"epochs": 6, "learning_rate": 0.01, "eval_every_steps": 7},
                "jobs": jobs,
            }
        )
    )
    return path


def metrics(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "adapter" / "metrics.csv").read_text().splitlines()))


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers", "train", *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_move_to_another_process_changes_no_number(config, tmp_path, capsys):
    assert main([str(config), "--quiet", "--output", str(tmp_path / "whole")]) == 0
    whole = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [job["outcome"] for job in whole] == ["finished"] * 4

    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "moved", reproducible=True)
    jobs = plan_jobs(read_config(config), config.parent)
    sinks = [RecordingSink() for _ in jobs]
    for job, sink in zip(jobs, sinks, strict=True):
        attach(runtime, job.spec, job.data, sink=sink)
    for job in jobs:
        runtime.detach(job.spec.job_id, checkpoint=True)
    steps = [sink.wait().step for sink in sinks]
    runtime.close()
    assert all(sink.outcome == "paused" for sink in sinks)
    assert any(step > 0 for step in steps)

    moved = run_command(str(config), "--quiet", "--resume", "--output", str(tmp_path / "moved"))
    assert moved.returncode == 0, moved.stderr
    for job in JOBS:
        left = metrics(tmp_path / "whole" / job["name"])
        right = metrics(tmp_path / "moved" / job["name"])
        assert [(r["step"], bool(r["train_loss"])) for r in left] == [
            (r["step"], bool(r["train_loss"])) for r in right
        ]
        for ours, theirs in zip(left, right, strict=True):
            for key in ("train_loss", "valid_loss", "grad_norm", "learning_rate"):
                if ours[key]:
                    assert float(theirs[key]) == pytest.approx(float(ours[key]), rel=2e-5)
        other = json.loads(moved.stdout.splitlines()[JOBS.index(job)])
        assert other["samples_done"] == whole[JOBS.index(job)]["samples_done"]


def test_a_job_goes_on_with_the_checkpoint_of_a_paused_one_of_its_own_settings(config, tmp_path):
    """A resumed job has another id, and ends with the weights of one that was never paused."""
    spec, data = (job := plan_jobs(read_config(config), config.parent)[0]).spec, job.data
    weights = []
    with contextlib.closing(
        NodeRuntime(device="cpu", cache_dir=tmp_path / "cache", reproducible=True)
    ) as runtime:
        whole = attach(runtime, spec, data)
        first = attach(runtime, replace(spec, job_id="paused"), data, pause_at=10)
        first.wait()
        assert first.outcome == "paused"
        path, step = first.checkpoints[-1]
        assert step == 10
        rest = attach(runtime, replace(spec, job_id="rest"), data, path)
        for sink in (whole, rest):
            sink.wait()
            assert sink.outcome == "finished"
            weights.append((sink.adapter_dir / "adapter_model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_a_reproducible_job_gives_the_same_bits_whatever_is_measured(config, tmp_path, monkeypatch):
    written = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(written | {"jobs": written["jobs"][:1]}))
    weights = []
    for other_way_if_it_takes_at_most in (0.0, float("inf")):
        monkeypatch.setattr(product_choice, "_WORTH", other_way_if_it_takes_at_most)
        monkeypatch.setattr(thread_choice, "_WORTH", other_way_if_it_takes_at_most)
        output = tmp_path / f"at-most-{other_way_if_it_takes_at_most}"
        assert main([str(config), "--quiet", "--output", str(output)]) == 0
        adapter = output / "dropping" / "adapter" / "adapter_model.safetensors"
        weights.append(adapter.read_bytes())
    assert weights[0] == weights[1]


def test_a_checkpoint_holds_adapter_optimizer_position_and_curve(config, tmp_path):
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache")
    job = plan_jobs(read_config(config), config.parent)[0]
    sink = RecordingSink()
    attach(runtime, job.spec, job.data, sink=sink)
    runtime.checkpoint("dropping")
    assert sink.on_checkpoint.wait(60)
    runtime.detach("dropping", checkpoint=False)
    runtime.close()
    path, step = sink.checkpoints[0]
    state = load_checkpoint(path)
    assert state.progress.step == step
    assert state.params.keys() == state.means.keys() == state.squares.keys()
    assert len(state.params) == 2 * 7 * 2
    assert len(state.metrics) >= step
    assert state.row_losses.shape == (27,)
    assert sink.outcome is None


def test_a_wrong_configuration_says_what_to_change(config, tmp_path, capsys):
    good = yaml.safe_load(config.read_text())
    cases = [
        ({"jobs": []}, "needs jobs"),
        ({"jbos": 1}, "'jbos' is no key"),
        ({"jobs": [good["jobs"][0]] * 2}, "Two jobs are called 'dropping'"),
        ({"jobs": [good["jobs"][0] | {"data": "none.jsonl"}]}, "There is no file"),
        ({"jobs": [good["jobs"][0] | {"adapter": {"rnak": 3}}]}, "unknown keys: rnak"),
        ({"jobs": [good["jobs"][0] | {"name": "../up"}]}, "cannot be called '../up'"),
        ({"base_model": ""}, "names no base_model"),
    ]
    for change, words in cases:
        config.write_text(yaml.safe_dump(good | change))
        assert main([str(config), "--quiet"]) == 2
        assert words in capsys.readouterr().err
    config.write_text("a: [1")
    assert main([str(config)]) == 2
    assert "cannot be read" in capsys.readouterr().err


#: Of each bundled data set: enough for a loss to fall.
ROWS = 160


@pytest.mark.nightly
def test_two_bundled_data_sets_train_at_once_on_the_bundled_base(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    jobs = []
    for name in ("support_tone", "unit_sums"):
        rows = (DATASETS / f"{name}.jsonl").read_bytes().splitlines(keepends=True)[:ROWS]
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(rows))
        jobs.append({"name": name, "data": str(tmp_path / f"{name}.jsonl")})
    training = {"epochs": 1, "learning_rate": 0.005, "batch_size": 16}
    path.write_text(
        yaml.safe_dump(
            {"base_model": "bundled:finetender-tiny", "training": training, "jobs": jobs}
        )
    )
    assert main([str(path), "--quiet"]) == 0
    for line in capsys.readouterr().out.splitlines():
        job = json.loads(line)
        assert job["valid_loss_after"] < job["valid_loss_before"]
        stock = AutoModelForCausalLM.from_pretrained(DATASETS.parent / "finetender-tiny")
        adapted = PeftModel.from_pretrained(stock, job["adapter"])
        assert any("lora_B" in name for name, _ in adapted.named_parameters())


def test_one_failed_job_makes_the_command_fail_and_the_others_finish(config, tmp_path, capsys):
    good = yaml.safe_load(config.read_text())
    wild = good["jobs"][1] | {
        "name": "wild",
        "adapter": {"alpha": 1e30},
        "training": {"learning_rate": 1.0},
    }
    config.write_text(yaml.safe_dump(good | {"jobs": [good["jobs"][0], wild]}))
    assert main([str(config), "--quiet", "--output", str(tmp_path / "out")]) == 1
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["outcome"], second["outcome"]) == ("finished", "failed")
    assert "Lower the learning rate" in second["reason"]
    assert second["adapter"] is None
