"""What a running job tells: at most twice a second, and nothing is lost in between."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.workers.training_builders import (
    RecordingSink,
    admit,
    random_examples,
    tiny_model,
    trainer,
    training_job,
)
from workers.runtime import running_job
from workers.runtime.resident import ResidentBase
from workers.runtime.running_job import RunningJob
from workers.training.job import TrainingJob
from workers.training.step_results import StepResult


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now


@pytest.fixture
def clock(monkeypatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(running_job, "time", clock)
    return clock


def told(job: TrainingJob) -> tuple[RunningJob, RecordingSink]:
    """The job as one that runs, and what it tells."""
    sink = RecordingSink()
    running = RunningJob(
        job=job,
        resident=cast(ResidentBase, SimpleNamespace()),
        sink=sink,
        directory=Path(),
        fingerprint="",
        checkpoint_due_at=0.0,
    )
    return running, sink


def test_events_come_at_most_twice_a_second_and_say_where_the_job_stands(clock):
    fused = trainer(tiny_model())
    rows = random_examples(16, seed=1, shortest=10, longest=10)
    job = training_job("a", rows, training={"batch_size": 4, "epochs": 10, "schedule": "linear"})
    admit(fused, job)
    running, sink = told(job)
    running.report(force=True)
    steps: list[StepResult] = []
    for turn in range(20):
        clock.now += 0.125
        (step,) = fused.round()
        assert isinstance(step, StepResult)
        steps.append(step)
        running.stepped(step)
        running.log.append(f"step {turn + 1}")
        running.peak_memory_gb = 0.25 + turn
        running.report()
    events = sink.events
    # one at the start, then one every half second: every fourth step
    assert [event.step for event in events] == [0, 4, 8, 12, 16, 20]
    assert [event.seq for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.at - events[0].at for event in events] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    # what was said between two events is in the next
    assert [line for event in events for line in event.log] == [
        f"step {turn + 1}" for turn in range(20)
    ]
    assert (events[0].train_loss, events[0].tokens_per_s, events[0].eta_s) == (None, None, None)
    last = events[-1]
    assert (last.total_steps, last.epoch, last.samples_done) == (40, 5.0, 80)
    assert last.train_loss == steps[-1].loss
    assert last.grad_norm == steps[-1].grad_norm
    assert last.learning_rate == steps[-1].learning_rate
    # four rows of ten tokens every eighth of a second, and eighty rows to go
    assert last.samples_per_s == pytest.approx(32)
    assert last.tokens_per_s == pytest.approx(320)
    assert last.eta_s == pytest.approx(2.5)
    assert last.memory_gb == 19.25


def test_the_time_left_counts_an_epochs_short_last_batch_once(clock):
    fused = trainer(tiny_model())
    job = training_job(
        "a",
        random_examples(5, seed=1, shortest=9, longest=9),
        training={"batch_size": 4, "epochs": 2},
    )
    admit(fused, job)
    running, sink = told(job)
    for _ in range(2):
        clock.now += 1.0
        (step,) = fused.round()
        assert isinstance(step, StepResult)
        running.stepped(step)
        running.report()
    # 4 rows, then 1 in a second; an epoch of 5 is left
    assert [event.samples_done for event in sink.events] == [4, 5]
    assert sink.events[-1].samples_per_s == pytest.approx(1.0)
    assert sink.events[-1].eta_s == pytest.approx(5.0)
