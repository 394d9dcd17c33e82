"""A job's share of a pack: what its batch still lacks, and what of it is in packs."""

from __future__ import annotations

from workers.training.job import TrainingJob
from workers.training.packing import Example, PackShare


def is_batch_complete(job: TrainingJob) -> bool:
    batch = job.current_batch()
    return batch.taken == len(batch.rows)


def list_left(job: TrainingJob) -> list[Example]:
    """What the job's batch still lacks."""
    batch = job.current_batch()
    return [job.data.train[row] for row in batch.rows[batch.taken :]]


def count_taken(job: TrainingJob) -> int:
    """Tokens of the job's batch that are in packs already."""
    batch = job.current_batch()
    return sum(job.tokens_of(job.data.train[row]) for row in batch.rows[: batch.taken])


def take_share(job: TrainingJob, count: int) -> PackShare:
    return PackShare(
        job_id=job.job_id,
        examples=tuple(list_left(job)[:count]),
        first_row=job.current_batch().taken,
        step=job.progress.step,
        seed=job.spec.training.seed,
        dropout=job.spec.adapter.dropout,
        noise=job.spec.training.neftune_alpha,
        virtual_tokens=job.virtual_tokens,
    )
