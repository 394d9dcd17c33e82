"""When a job ends before its last step, and which of its weights are its result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.workers.training_builders import random_examples, training_job
from workers.protocol.job_spec import BlobRef, WarmStart
from workers.training.job import TrainingJob

ADAPTER = BlobRef(url="/a", sha256="0" * 64, bytes=1)


def job_with(*, patience: int = 0, warm: WarmStart | None = None) -> TrainingJob:
    """Ten steps over twenty rows."""
    job = training_job("a", random_examples(20, seed=1))
    training = replace(job.spec.training, early_stopping=patience, batch_size=4, epochs=2)
    return TrainingJob(replace(job.spec, training=training, warm_start=warm), job.data)


def note(job: TrainingJob, *losses: float, first_step: int = 1) -> list[bool]:
    kept = []
    for step, loss in enumerate(losses, first_step):
        job.progress.step = step
        kept.append(job.note_validation(loss))
    return kept


def test_a_job_ends_after_so_many_evaluations_that_are_no_lower() -> None:
    job = job_with(patience=2)
    assert note(job, 3.0, 2.0, 2.5) == [True, True, False]
    assert not job.done
    assert note(job, 2.0, first_step=4) == [False]
    assert job.done
    assert (job.progress.best_step, job.progress.best_valid_loss) == (2, 2.0)


def test_a_lower_loss_begins_the_count_again() -> None:
    job = job_with(patience=2)
    note(job, 3.0, 3.1, 2.9, 3.0)
    assert not job.done
    assert job.progress.best_step == 3


def test_without_early_stopping_nothing_is_kept_and_nothing_ends() -> None:
    job = job_with()
    assert note(job, 1.0, 2.0, 3.0, 4.0) == [False] * 4
    assert not job.done
    assert job.progress.best_step is None


@pytest.mark.parametrize(("warm", "kept"), [(None, False), (WarmStart(ADAPTER), True)])
def test_only_the_weights_of_a_warm_start_can_be_the_best_before_the_first_step(
    warm: WarmStart | None, kept: bool
) -> None:
    job = job_with(patience=1, warm=warm)
    assert note(job, 1.0, first_step=0) == [kept]


def test_a_warm_start_at_its_target_is_done_after_its_steps() -> None:
    job = job_with(warm=WarmStart(ADAPTER, steps=4, target_loss=1.0))
    assert job.total_steps == 4
    note(job, 0.5, 0.5, 0.5)
    assert not job.done
    note(job, 1.0, first_step=4)
    assert job.done
    assert not job.progress.extended


def test_a_warm_start_that_falls_behind_goes_on_to_the_target_or_to_its_end() -> None:
    warm = WarmStart(ADAPTER, steps=4, target_loss=1.0)
    job = job_with(warm=warm)
    note(job, 1.01, first_step=4)
    assert not job.done
    assert (job.total_steps, job.schedule_start) == (10, 4)
    note(job, 1.0, first_step=6)
    assert job.done
    other = job_with(warm=warm)
    note(other, 2.0, first_step=4)
    other.progress.step = 10
    assert other.done


def test_a_job_ends_at_its_target_score_and_not_before_its_first_step() -> None:
    job = job_with()
    job = TrainingJob(
        replace(job.spec, training=replace(job.spec.training, target_loss=2.0)), job.data
    )
    note(job, 1.5, first_step=0)
    assert not job.done
    note(job, 2.1, first_step=1)
    assert not job.done
    note(job, 2.0, first_step=2)
    assert job.done
