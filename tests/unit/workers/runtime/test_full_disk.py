"""A disk that is full: what is lost, what is not, and who is told."""

from __future__ import annotations

import resource
import threading
from contextlib import contextmanager

from tests.unit.workers.training_builders import (
    RecordingSink,
    attach,
    completion_rows,
    job_spec,
    write_jsonl,
)
from workers.protocol.reports import Fault
from workers.training.checkpoint import load_checkpoint


@contextmanager
def full_disk():
    """Files may hold two kilobytes: writes fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_a_checkpoint_and_never_the_training(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(40))
    spec = job_spec("a", base, data, training={"epochs": 400})
    sink = attach(runtime, spec, data)
    runtime.checkpoint("a")
    assert sink.on_checkpoint.wait(60)
    sink.on_checkpoint.clear()
    first = sink.checkpoints[0][0]
    with full_disk():
        runtime.detach("a", checkpoint=True)
        sink.wait()
    assert sink.outcome == "failed"
    assert sink.fault is Fault.SYSTEM
    assert "cannot be written" in sink.reason
    assert sink.summary is not None
    assert sink.summary.checkpoint_path == first
    load_checkpoint(first)
    assert [path.name for path in (tmp_path / "cache" / "a").iterdir()] == [first.name]


class _Listening(RecordingSink):
    """Hears of the checkpoint that was not written."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def progress(self, event):
        super().progress(event)
        if any("was not written" in line and "Training goes on" in line for line in event.log):
            self.told.set()


def test_a_disk_that_is_full_for_a_while_stops_no_step(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(200))
    spec = job_spec("a", base, data, training={"epochs": 1000})
    sink = _Listening()
    attach(runtime, spec, data, sink=sink)
    runtime.checkpoint("a")
    assert sink.on_checkpoint.wait(60)
    with full_disk():
        runtime.checkpoint("a")
        assert sink.told.wait(60)
    assert runtime.jobs() == ("a",)
    first, step = sink.checkpoints[0]
    assert load_checkpoint(first).progress.step == step
    assert list((tmp_path / "cache" / "a").iterdir()) == [first]
    sink.on_checkpoint.clear()
    runtime.checkpoint("a")
    assert sink.on_checkpoint.wait(60)
    assert sink.checkpoints[-1][1] > step
    runtime.detach("a", checkpoint=True)
    sink.wait()
    assert sink.outcome == "paused"


def test_a_disk_that_is_full_at_the_end_leaves_an_earlier_adapter_whole(runtime, base, tmp_path):
    data = write_jsonl(tmp_path / "a.jsonl", completion_rows(8))
    first = attach(runtime, job_spec("a", base, data), data)
    first.wait()
    folder = tmp_path / "cache" / "a"
    files = {path.name: path.read_bytes() for path in (folder / "adapter").iterdir()}
    with full_disk():
        again = attach(runtime, job_spec("a", base, data, training={"epochs": 3}), data)
        again.wait()
    assert (again.outcome, again.fault) == ("failed", Fault.SYSTEM)
    assert "The adapter cannot be written on this node" in again.reason
    assert [path.name for path in folder.iterdir()] == ["adapter"]
    assert {path.name: path.read_bytes() for path in (folder / "adapter").iterdir()} == files
