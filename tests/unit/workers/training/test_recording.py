"""Recording that fails, has to wait or takes too much memory: nobody's numbers change."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

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
from workers.training import recorded_step, recorded_steps
from workers.training.fused_trainer import FusedTrainer
from workers.training.graph_runners import (
    RECORDING,
    CudaGraphRunner,
    RecordingDeferredError,
    RepeatRunner,
)
from workers.training.packed_model import PackedModel
from workers.training.recorded_step import RecordedStep
from workers.training.recorded_steps import RecordedSteps, record_steps_if_faster

SETTINGS = (
    {"adapter": {"rank": 4, "dropout": 0.1}, "training": {"batch_size": 4}},
    {"adapter": {"rank": 8, "target_modules": ("q_proj",)}, "training": {"batch_size": 2}},
)
STEPS = 8


def loaded(runner: RepeatRunner | Tape | None = None) -> FusedTrainer:
    """Two jobs that differ, and recorded steps if there is a runner."""
    fused = trainer(tiny_model())
    if runner is not None:
        fused.fixed = RecordedSteps(fused.model, runner, form="dense", after=0)
    for index, setting in enumerate(SETTINGS):
        training = setting["training"] | {"epochs": 6, "seed": index}
        rows = random_examples(10 * training["batch_size"], seed=index)
        job = training_job(f"job-{index}", rows, adapter=setting["adapter"], training=training)
        admit(fused, job)
    return fused


def assert_plain_curves(curves: dict[str, list[float]]) -> None:
    plain = run_steps(loaded(), STEPS)
    assert sorted(curves) == sorted(plain)
    for name, curve in plain.items():
        assert len(curves[name]) == STEPS
        np.testing.assert_allclose(curves[name], curve, rtol=1e-5)


class _Spoiling(RepeatRunner):
    """Fails only after its runs have left rubbish in everybody's gradients."""

    name = "spoiling"

    def __init__(self, *, replays: int) -> None:
        #: Replays that go well; with none, the recording itself fails.
        self.left = replays
        self.fused: FusedTrainer | None = None

    def record(self, action):
        action()
        if not self.left:
            self.fail()

        def run() -> None:
            if not self.left:
                self.fail()
            self.left -= 1
            action()

        return run

    def fail(self) -> None:
        assert self.fused is not None
        for name in self.fused.jobs:
            for _, _, grad in self.fused.model.tensors(name):
                grad.fill_(float("nan"))
        raise RuntimeError("operation failed due to a previous error during capture")


@pytest.mark.parametrize("replays", [0, 3])
def test_what_a_failed_recording_leaves_in_the_gradients_reaches_nobody(caplog, replays):
    runner = _Spoiling(replays=replays)
    fused = loaded(runner)
    runner.fused = fused
    fixed = fused.fixed
    assert fixed is not None
    assert_plain_curves(run_steps(fused, STEPS))
    assert (fixed.failed, fixed.replays) == (True, replays)
    told = [r.message for r in caplog.records if "during capture" in r.message]
    assert told == [
        "steps are not recorded here (spoiling): operation failed due to a previous error during "
        "capture"
    ]


class _Waiting(Tape):
    """Another thread has the device for the first so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def record(self, action):
        if self.times:
            self.times -= 1
            raise RecordingDeferredError
        return super().record(action)


def test_a_recording_that_has_to_wait_is_made_later(caplog):
    fused = loaded(_Waiting(3))
    fixed = fused.fixed
    assert fixed is not None
    assert_plain_curves(run_steps(fused, STEPS))
    assert not fixed.failed
    assert fixed.replays > 0
    assert "not recorded" not in caplog.text


def test_out_of_memory_takes_the_recordings_before_it_suspects_anybody(caplog):
    fused = loaded(Tape())
    fixed = fused.fixed
    assert fixed is not None
    full, refused = False, 0

    def check(_module, _args):
        nonlocal refused
        if full and fixed.shapes:
            refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory (test)")

    fused.model.backbone.register_forward_pre_hook(check)
    curves = run_steps(fused, 3)
    assert fixed.replays >= 2
    full = True
    # whoever comes is measured on a plain pass
    rows = random_examples(8, seed=9)
    admit(fused, training_job("late", rows, training={"epochs": 2}))
    for name, curve in run_steps(fused, STEPS).items():
        curves[name] = (curves.get(name, []) + curve)[:STEPS]
    assert refused == 1
    assert fused.fixed is None
    assert [job.micro_tokens for job in fused.jobs.values()] == [None, None, None]
    assert fused.token_budget == 4096
    assert "recorded steps are given up for their memory" in caplog.text
    del curves["late"]
    assert_plain_curves(curves)


@pytest.mark.parametrize(("runner", "told"), [(Tape, True), (RepeatRunner, False)])
def test_what_a_recording_took_from_the_host_is_found_out_before_it_is_used(
    runner, told, caplog, monkeypatch
):
    """The loss depends on a number of the pack that no buffer holds."""
    host = {"sequences": 0}
    honest_load, honest_nll = RecordedStep.load, recorded_steps.compute_sequence_nll

    def load(self, pack, weights):
        host["sequences"] = len(pack.starts) - 1
        honest_load(self, pack, weights)

    monkeypatch.setattr(RecordedStep, "load", load)
    monkeypatch.setattr(
        recorded_step, "compute_sequence_nll", lambda *parts: honest_nll(*parts) * host["sequences"]
    )
    monkeypatch.setattr(
        recorded_steps,
        "compute_sequence_nll",
        lambda model, pack, hidden: honest_nll(model, pack, hidden) * (len(pack.starts) - 1),
    )
    record_steps_if_faster(PackedModel(tiny_model()), runner(), form="dense")
    assert ("its numbers are off" in caplog.text) is told


class _Device:
    """Stands where ``torch.cuda`` does: which stream is current, and what ran on it."""

    def __init__(self) -> None:
        self.current = "main"
        self.log: list[str] = []
        self.pools = 0
        #: What the end of a recording raises, if anything; like PyTorch, it then leaves its
        #: stream behind as the current one.
        self.refusal: Exception | None = None

    def device(self, index):
        self.log.append(f"device {index}")
        return contextlib.nullcontext()

    def graph_pool_handle(self):
        self.pools += 1
        return self.pools

    def current_stream(self):
        return _Stream(self, self.current)

    def set_stream(self, stream):
        self.current = stream.name

    def Stream(self):
        return _Stream(self, "aside")

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def CUDAGraph(self):
        return _Graph(self)

    @contextlib.contextmanager
    def graph(self, _graph, *, pool, capture_error_mode):
        before, self.current = self.current, f"recording in pool {pool}, {capture_error_mode}"
        yield
        if self.refusal is not None:
            raise self.refusal
        self.current = before

    def act(self) -> None:
        self.log.append(self.current)


class _Stream(SimpleNamespace):
    def __init__(self, device: _Device, name: str) -> None:
        super().__init__(device=device, name=name)

    def wait_stream(self, other):
        self.device.log.append(f"{self.name} waits for {other.name}")


class _Graph:
    def __init__(self, device: _Device) -> None:
        self.device = device

    def replay(self) -> None:
        self.device.log.append("replay")


@pytest.fixture
def device(monkeypatch) -> _Device:
    device = _Device()
    for name in ("device", "graph_pool_handle", "current_stream", "set_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    for name in ("stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    return device


def test_cuda_runs_are_warmed_up_aside_recorded_once_and_replayed(device):
    replay = CudaGraphRunner(torch.device("cuda:1")).record(device.act)
    replay()
    assert device.log == [
        "device cuda:1",
        "aside waits for main",
        "aside",
        "aside",
        "main waits for aside",
        "recording in pool 1, thread_local",
        "replay",
    ]
    assert device.current == "main"


def test_a_cuda_recording_that_breaks_off_gives_the_stream_back(device):
    device.refusal = RuntimeError("capture was invalidated")
    runner = CudaGraphRunner()
    with pytest.raises(RuntimeError, match="invalidated"):
        runner.record(device.act)
    assert device.current == "main"
    device.refusal = None
    in_another_thread(runner.record, device.act)()
    assert device.log[-1] == "replay"


def test_recordings_share_a_pool_until_none_is_left(device):
    runner = CudaGraphRunner()
    first, second = runner.record(device.act), runner.record(device.act)
    assert device.pools == 1
    del first
    third = runner.record(device.act)
    assert device.pools == 1
    del second, third
    runner.record(device.act)
    assert device.pools == 2


def test_nobody_records_while_another_thread_has_the_device(device):
    with RECORDING:
        # a base that is being measured may record on its own thread
        CudaGraphRunner().record(device.act)
        device.log.clear()
        with pytest.raises(RecordingDeferredError):
            in_another_thread(CudaGraphRunner().record, device.act)
    assert device.log == []


def in_another_thread(call, *args, **kwargs):
    """What the call returns or raises there."""
    found = {}

    def run() -> None:
        try:
            found["value"] = call(*args, **kwargs)
        except Exception as error:
            found["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if "error" in found:
        raise found["error"]
    return found["value"]
