"""Checks of whole jobs in the runtime: every method, answers beside them, and their resume."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from workers.bench.check_jobs import BUNDLED, build_spec, run_node, train, write_rows
from workers.protocol.generation import ChatTurn, Question, Written
from workers.protocol.job_spec import BaseModelRef, BlobRef, DataFormat
from workers.protocol.probes import ProbeAdapter
from workers.runtime.node_runtime import NodeRuntime

CPU = torch.device("cpu")
#: Jobs of every kind, side by side: of their adapter, their training and their rows.
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lora": ({}, {}),
    "rank 100, dropout, NEFTune": (
        {"rank": 100, "dropout": 0.1, "rslora": True},
        {"neftune_alpha": 5.0},
    ),
    "dora": ({"rank": 16, "dora": True, "target_modules": ("q_proj", "v_proj")}, {}),
    "dpo": ({}, {"preference_loss": "dpo"}),
    "orpo": ({"rank": 64}, {"preference_loss": "orpo"}),
}


def check_training(device: torch.device) -> Iterator[dict[str, Any]]:
    """Last losses of jobs of every method, side by side, against the CPU's; also in four bits."""
    refs = {"float32": BUNDLED, "four bits": replace(BUNDLED, four_bit=True)}
    for name, ref in refs.items():
        for method, off in _compare_methods(ref, device, CPU).items():
            yield {"ok": off <= 1e-3, "base": name, "method": method, "off_from_cpu": off}


def check_group(device: torch.device) -> Iterator[dict[str, Any]]:
    """The same on a base in two parts against one; a device stands for two where it is alone."""
    many = device.type == "cuda" and torch.cuda.device_count() > 1
    group = "cuda:0,cuda:1" if many else f"{device},{device}"
    # of one device, which both would count as theirs
    for method, off in _compare_methods(BUNDLED, group, device, memory_limit_gb=8.0).items():
        yield {"ok": off <= 1e-3, "devices": group, "method": method, "off": off}


def _compare_methods(
    ref: BaseModelRef, one: torch.device | str, other: torch.device | str, **settings: Any
) -> dict[str, float]:
    """By how much the last losses of ``METHODS`` differ."""
    here, there = (_train_methods(ref, where, **settings) for where in (one, other))
    return {method: abs(here[method] - loss) / loss for method, loss in there.items()}


def _train_methods(
    ref: BaseModelRef, device: torch.device | str, **settings: Any
) -> dict[str, float]:
    """The last loss of each of ``METHODS``."""
    folder = tempfile.TemporaryDirectory()
    with folder as name, run_node(device, Path(name), **settings) as runtime:
        files = {
            prefers: write_rows(Path(name) / "rows", preferences=prefers)
            for prefers in (False, True)
        }
        endings = {}
        for method, (adapter, training) in METHODS.items():
            prefers = "preference_loss" in training
            kind = DataFormat.PREFERENCE if prefers else DataFormat.CHAT
            spec = build_spec(f"job {method}", ref, files[prefers], kind, adapter, **training)
            endings[method] = train(runtime, spec, files[prefers])
        for method, ending in endings.items():
            assert ending.wait().outcome == "finished", f"{method}: {ending.reason}"
    return {method: ending.losses[max(ending.losses)] for method, ending in endings.items()}


def check_answers(device: torch.device) -> Iterator[dict[str, Any]]:
    """Answers beside a job, with keys and values kept, against those of the CPU."""
    with tempfile.TemporaryDirectory() as name:
        data = write_rows(Path(name) / "rows", preferences=False)
        spec = build_spec("job", BUNDLED, data, learning_rate=1e-2)
        with run_node(CPU, Path(name) / "trained") as runtime:
            ending = train(runtime, spec, data).wait()
            assert ending.adapter is not None, ending.reason
            kept = shutil.make_archive(str(Path(name) / "adapter"), "zip", ending.adapter)
        adapter = ProbeAdapter("adapter", BlobRef("", "0" * 64, 0), spec.adapter)
        texts = {}
        for where in {device, CPU}:
            with run_node(where, Path(name) / where.type) as runtime:
                beside = train(runtime, replace(spec, job_id="beside"), data)
                told = [_ask(runtime, chosen, Path(kept)) for chosen in (None, adapter, None)]
                texts[where] = [one.wait() for one in told]
                assert beside.wait().outcome == "finished", beside.reason
    bare, adapted, again = texts[device]
    yield {
        "ok": texts[device] == texts[CPU] and bare == again != adapted and bool(adapted),
        "answer": adapted[:60],
    }


class _Told:
    """What is said of one answer, until its end."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._is_over = threading.Event()

    def __call__(self, written: Written) -> None:
        self._parts.append(written.text or written.reason)
        if written.finish:
            self._is_over.set()

    def wait(self) -> str:
        assert self._is_over.wait(300), "an answer did not end in five minutes"
        return "".join(self._parts)


def _ask(runtime: NodeRuntime, adapter: ProbeAdapter | None, kept: Path) -> _Told:
    told = _Told()
    question = Question(
        token=f"question {id(told)}",
        expires_at=time.time() + 600,
        base_model=BUNDLED,
        adapter=adapter,
        turns=(ChatTurn("user", "Is the mug in stock again? Tom"),),
        max_tokens=24,
    )
    runtime.answer(question, kept if adapter else None, told)
    return told


def check_resume(device: torch.device) -> Iterator[dict[str, Any]]:
    """A job that goes on in another runtime ends with the loss of the uninterrupted one."""
    with tempfile.TemporaryDirectory() as name:
        data = write_rows(Path(name) / "rows", preferences=False)
        spec = build_spec("job", BUNDLED, data, epochs=2)
        run = partial(run_node, device, reproducible=True)
        with run(Path(name) / "whole") as runtime:
            whole = train(runtime, spec, data).wait()
        with run(Path(name) / "parts") as runtime:
            first = train(runtime, replace(spec, checkpoint_every_s=0.0), data)
            assert first.has_checkpoint.wait(60)
            runtime.detach("job", checkpoint=True)
            first.wait()
        assert first.checkpoint is not None
        with run(Path(name) / "moved") as runtime:
            second = train(runtime, spec, data, first.checkpoint).wait()
    assert second.outcome == "finished", second.reason
    last = max(whole.losses)
    off = abs(second.losses[last] - whole.losses[last]) / whole.losses[last]
    yield {"ok": off <= 1e-4, "steps": last, "off": off}
