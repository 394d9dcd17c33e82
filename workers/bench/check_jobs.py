"""Jobs of the checks: real ones of the bundled base, in a node's runtime."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from workers.models import BUNDLED_PREFIX, DATASETS, TINY
from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.protocol.reports import Fault, ProgressEvent
from workers.runtime.job_sink import JobSummary
from workers.runtime.node_runtime import NodeRuntime

BUNDLED = BaseModelRef(name=TINY, source=f"{BUNDLED_PREFIX}{TINY}", dtype="float32")
_DATA = DATASETS / "support_tone.jsonl"
#: Rows that a job of the checks trains on.
_ROWS = 48


@contextmanager
def run_node(device: torch.device | str, folder: Path, **settings: Any) -> Iterator[NodeRuntime]:
    runtime = NodeRuntime(device=str(device), cache_dir=folder / "cache", **settings)
    try:
        yield runtime
    finally:
        runtime.close()


def write_rows(folder: Path, *, preferences: bool) -> Path:
    """The first rows of the bundled data; as preferences, each is better than the next."""
    folder.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in _DATA.read_text().splitlines()[: _ROWS + 1]]
    if preferences:
        turns = [row["messages"] for row in rows]
        rows = [
            {"prompt": one[:-1], "chosen": one[-1:], "rejected": other[-1:]}
            for one, other in pairwise(turns)
        ]
    path = folder / f"{'preferences' if preferences else 'chats'}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:_ROWS]))
    return path


def build_spec(
    name: str,
    ref: BaseModelRef,
    data: Path,
    data_format: DataFormat = DataFormat.CHAT,
    adapter: Mapping[str, Any] = MappingProxyType({}),
    **training: Any,
) -> JobSpec:
    terms = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "sequence_length": 256}
    return JobSpec(
        job_id=name,
        base_model=ref,
        data_format=data_format,
        dataset=BlobRef(url="", sha256=hash_file(data), bytes=data.stat().st_size),
        adapter=AdapterSpec(**({"rank": 8, "alpha": 16.0} | dict(adapter))),
        training=TrainingSpec(**(terms | training)),
        checkpoint_every_s=1e9,
    )


def train(runtime: NodeRuntime, spec: JobSpec, data: Path, *checkpoints: Path) -> JobEnding:
    ending = JobEnding()
    runtime.attach(
        job=spec, data_path=data, validation_path=None, checkpoint_paths=checkpoints, sink=ending
    )
    return ending


@dataclass
class JobEnding:
    """A sink that keeps losses and waits for the end."""

    losses: dict[int, float] = field(default_factory=dict)
    outcome: str = ""
    reason: str = ""
    fault: Fault | None = None
    #: A copy of the adapter's folder, once it is finished.
    adapter: Path | None = None
    checkpoint: Path | None = None
    has_checkpoint: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    peak_gb: float = 0.0

    def progress(self, event: ProgressEvent) -> None:
        self.peak_gb = max(self.peak_gb, event.memory_gb or 0.0)
        if event.train_loss is not None:
            self.losses[event.step] = event.train_loss

    def checkpointed(self, path: Path, step: int) -> None:
        self.checkpoint = path
        self.has_checkpoint.set()

    def paused(self, summary: JobSummary) -> None:
        self._end("paused", "", summary)

    def finished(self, adapter_dir: Path, summary: JobSummary) -> None:
        self.adapter = adapter_dir
        self._end("finished", "", summary)

    def failed(self, fault: Fault, reason: str, summary: JobSummary) -> None:
        self.fault = fault
        self._end("failed", reason, summary)

    def _end(self, outcome: str, reason: str, summary: JobSummary) -> None:
        self.outcome, self.reason = outcome, reason
        if summary.last_train_loss is not None:
            self.losses[summary.step] = summary.last_train_loss
        self.is_over.set()

    def wait(self) -> JobEnding:
        assert self.is_over.wait(300), "a job did not end in five minutes"
        return self
