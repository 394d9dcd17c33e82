"""A node that is a group: its jobs move to and from single devices, and its files are theirs."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.unit.workers.training_builders import (
    attach,
    completion_rows,
    job_spec,
    save_tiny_base,
    write_jsonl,
)
from workers.protocol.memory import GB
from workers.protocol.pass_bytes import count_unpacking_bytes
from workers.protocol.reports import Fault
from workers.runtime.answers import Answers
from workers.runtime.checkpoint_pipe import list_checkpoints
from workers.runtime.memory_plan import fit
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.resident import load_resident
from workers.runtime.train_command import plan_jobs, read_config
from workers.training.checkpoint import load_checkpoint
from workers.training.evaluation import EvaluationRun
from workers.training.faults import SystemFault, UserFault
from workers.training.pack_shares import is_batch_complete
from workers.training.packed_model import PackedModel

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[4]
JOBS = (
    {"name": "dropping", "adapter": {"dropout": 0.25}, "training": {"batch_size": 3}},
    {"name": "plain", "adapter": {"rank": 2, "dora": True}},
    {"name": "soft", "adapter": {"kind": "soft_prompt", "virtual_tokens": 4}},
    {"name": "pairs", "data": "pairs.jsonl"},
)


@pytest.fixture
def config(tmp_path) -> Path:
    save_tiny_base(tmp_path / "base")
    write_jsonl(tmp_path / "rows.jsonl", completion_rows(30))
    pairs = [{"prompt": f"Q{i}?", "chosen": " blue", "rejected": " red"} for i in range(20)]
    write_jsonl(tmp_path / "pairs.jsonl", pairs)
    path = tmp_path / "config.yaml"
    training = {"epochs": 3, "learning_rate": 0.01, "eval_every_steps": 7}
    settings = {"base_model": "base", "reproducible": True, "training": training}
    path.write_text(
        yaml.safe_dump(
            settings
            | {"adapter": {"rank": 4, "alpha": 8.0}}
            | {"jobs": [{"data": "rows.jsonl"} | job for job in JOBS]}
        )
    )
    return path


def train(
    config: Path,
    output: Path,
    device: str,
    *,
    pause_at: int | None = None,
    every_s: float = 60.0,
):
    """Train on from what is there, to the end or to a step."""
    runtime = NodeRuntime(device=device, cache_dir=output, reproducible=True)
    sinks = {}
    try:
        for job in plan_jobs(read_config(config), config.parent):
            name = job.spec.job_id
            kept = list_checkpoints(output / name)
            spec = replace(job.spec, checkpoint_every_s=every_s)
            sinks[name] = attach(runtime, spec, job.data, *kept, pause_at=pause_at)
        for sink in sinks.values():
            sink.wait()
            assert sink.outcome == ("finished" if pause_at is None else "paused")
    finally:
        runtime.close()
    return sinks


def read_adapters(output: Path):
    return {
        job["name"]: load_file(output / job["name"] / "adapter" / "adapter_model.safetensors")
        for job in JOBS
    }


@pytest.mark.parametrize(("first", "then"), [("cpu,cpu", "cpu"), ("cpu", "cpu,cpu")])
def test_a_job_goes_on_from_its_checkpoint_on_another_number_of_devices(
    config, tmp_path, first, then
):
    whole = train(config, tmp_path / "whole", "cpu")
    train(config, tmp_path / "moved", first, pause_at=5)
    moved = train(config, tmp_path / "moved", then)
    left, right = read_adapters(tmp_path / "whole"), read_adapters(tmp_path / "moved")
    for name, tensors in left.items():
        assert moved[name].summary.step == whole[name].summary.step
        assert tensors.keys() == right[name].keys()
        for part, value in tensors.items():
            assert float((right[name][part] - value).norm() / value.norm()) < 5e-3


@pytest.mark.nightly
def test_a_group_that_is_killed_goes_on_on_one_device(config, tmp_path):
    config.write_text(config.read_text().replace("epochs: 3", "epochs: 20"))
    whole = train(config, tmp_path / "whole", "cpu")
    killed = tmp_path / "killed"
    script = (
        f"from pathlib import Path; from {__name__} import train;"
        f"train(Path({str(config)!r}), Path({str(killed)!r}), 'cpu,cpu', every_s=0.0)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    while not all(list_checkpoints(killed / job["name"]) for job in JOBS):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    moved = train(config, killed, "cpu")
    left, right = read_adapters(tmp_path / "whole"), read_adapters(killed)
    for name, tensors in left.items():
        assert moved[name].summary.step == whole[name].summary.step
        for part, value in tensors.items():
            assert float((right[name][part] - value).norm() / value.norm()) < 5e-3


def test_a_group_holds_what_its_tightest_part_holds(config, tmp_path):
    ref = plan_jobs(read_config(config), config.parent)[0].spec.base_model
    runtime = NodeRuntime(device="cpu,cpu", cache_dir=tmp_path, memory_limit_gb=0.5)
    try:
        resident = runtime.resident(ref)
        plan = resident.plan
        assert [part.blocks for part in plan.parts] == [1, 1]
        assert [len(part) for part in resident.model.parts] == [1, 1]
        assert sum(part.base_gb for part in plan.parts) == plan.base_gb
        found = fit(plan, needs=[], others_gb=0.0, longest_tokens=64)
        assert found.recompute
        assert found.token_budget == 2048
        tokens = int(0.3 * GB / 100)
        with pytest.raises(SystemFault, match="does not fit"):
            fit(plan, needs=[], others_gb=0.0, longest_tokens=tokens)
    finally:
        runtime.close()


@pytest.fixture
def flying(tmp_path):
    """Runs an action on a group's loop while the last pack of a job's step is under way."""
    base = save_tiny_base(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(30))
    runtime = NodeRuntime(device="cpu,cpu", cache_dir=tmp_path, reproducible=True)
    sinks = {
        name: attach(runtime, job_spec(name, base, data, training={"epochs": 1000}), data)
        for name in ("one", "two", "three")
    }

    def find_flying(trainer):
        for flight in trainer._flights:
            for share in flight.shares:
                if is_batch_complete(trainer.jobs[share.job_id]):
                    return share.job_id
        return None

    def act(action):
        [resident] = runtime._residents.list()
        while (name := find_flying(resident.trainer)) is None:
            runtime._rounds.run_round(resident)
        return sinks[name], action(runtime, runtime._running[name])

    yield lambda action: runtime._commands.call(lambda: act(action))
    runtime.close()


def test_a_step_that_is_under_way_belongs_to_a_job_that_pauses(flying):
    def pause(runtime, running):
        before = running.job.progress.step
        runtime._detach(running.job.job_id, True)
        return before, running.job.progress.step

    sink, (before, after) = flying(pause)
    assert after == before + 1
    assert sink.wait().step == after
    assert sink.checkpoints[-1][1] == after
    assert load_checkpoint(sink.checkpoints[-1][0]).progress.step == after


def test_a_checkpoint_has_the_row_of_a_step_that_was_not_told_yet(flying):
    def keep(runtime, running):
        running.resident.trainer.land()
        runtime._rounds.take_checkpoint(running.job.job_id)
        return running.job.progress.step, running.metrics[-1].step

    _, (step, told) = flying(keep)
    assert told == step


def test_packs_of_the_old_size_are_through_before_smaller_ones_begin(flying):
    def shrink(runtime, running):
        trainer = running.resident.trainer
        flights = len(trainer._flights)
        runtime._memory.fit(running.resident)
        alike = len(trainer._flights)
        trainer.token_budget += 1
        runtime._memory.fit(running.resident)
        return flights, alike, len(trainer._flights)

    _, (flights, alike, left) = flying(shrink)
    assert (alike, left) == (flights, 0)


@pytest.mark.parametrize("device", ["cpu", "cpu,cpu"])
def test_a_device_lost_in_an_evaluation_ends_all_jobs_and_the_node(tmp_path, monkeypatch, device):
    base = save_tiny_base(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(30))
    runtime = NodeRuntime(device=device, cache_dir=tmp_path, reproducible=True)

    def lose_device(*_args, **_options):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    try:
        specs = [job_spec(name, base, data, training={"epochs": 1000}) for name in "abc"]
        sinks = [attach(runtime, spec, data) for spec in specs]
        trainer = runtime.resident(base).trainer

        def lose():
            # every later call fails as well
            monkeypatch.setattr(PackedModel, "detach", lose_device)
            monkeypatch.setattr(EvaluationRun, "run_pack", lose_device)
            trainer.start_evaluation("a")

        runtime._commands.call(lose)
        for sink in sinks:
            sink.wait()
            assert sink.fault is Fault.SYSTEM
        assert runtime.device_lost.is_set()
        assert runtime.jobs() == ()
    finally:
        runtime.close()


def test_a_loop_that_fails_ends_the_node_and_leaves_nobody_waiting(tmp_path, monkeypatch):
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path, reproducible=True)

    def fail(*_args, **_options):
        raise KeyError("bug")

    monkeypatch.setattr(Answers, "write", fail)
    assert runtime._commands.call(lambda: 3) == 3
    assert runtime.device_lost.wait(60)
    assert runtime._commands.call(lambda: 4) == 4
    runtime.close()


def test_each_device_of_a_group_unpacks_four_bits_by_itself(tmp_path):
    ref = replace(save_tiny_base(tmp_path / "base"), four_bit=True)
    one, two = (
        load_resident(ref, device=CPU, others=others, limit_gb=1.0).plan for others in ((), (CPU,))
    )
    assert sum(part.base_gb for part in two.parts) == two.base_gb
    assert (two.base_gb - one.base_gb) * GB == pytest.approx(count_unpacking_bytes(one.shape))


def test_a_group_holds_one_base_and_keeps_the_one_that_is_in_use(config, tmp_path):
    [first, *_] = plan_jobs(read_config(config), config.parent)
    ref, second = first.spec.base_model, save_tiny_base(tmp_path / "second")
    runtime = NodeRuntime(device="cpu,cpu", cache_dir=tmp_path, reproducible=True)
    try:
        runtime.resident(ref)
        runtime.resident(second)
        assert [one.ref for one in runtime._residents.list()] == [second]
        attach(runtime, first.spec, first.data)
        assert [one.ref for one in runtime._residents.list()] == [ref]
        with pytest.raises(SystemFault, match="which is in use"):
            runtime.resident(second)
    finally:
        runtime.close()


def test_a_base_of_fewer_blocks_than_devices_is_refused(config, tmp_path):
    ref = plan_jobs(read_config(config), config.parent)[0].spec.base_model
    runtime = NodeRuntime(device="cpu,cpu,cpu", cache_dir=tmp_path, memory_limit_gb=0.5)
    try:
        with pytest.raises(UserFault, match="has 2 blocks, and this node is a group of 3"):
            runtime.resident(ref)
    finally:
        runtime.close()
