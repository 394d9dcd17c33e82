"""Rows that an adapter says by heart: their text could be had from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workers.training.job import TrainingJob
from workers.training.packing import Example

#: Mean loss in nats per trained token below which a row may be known by heart.
BY_HEART = 0.1
#: It then loses at most this share of what rows that were never seen lose. Where those are as
#: easy, the rows are alike and nothing was memorised.
UNSEEN_SHARE = 0.1


def count_memorised_rows(job: TrainingJob) -> int:
    """Training rows that a job's adapter says by heart.

    Rows count by their loss when they were last seen. Held-out rows that are copies of training
    rows were seen as well. So the loss on unseen rows is the mean over held-out rows without these
    copies, and a training row with a copy among them is not compared with it.

    Parameters
    ----------
    job : TrainingJob
        With its last validation loss; without one nothing is said.
    """
    valid_loss = job.progress.valid_loss_after
    if job.data.kind != "tokens" or valid_loss is None:
        return 0
    losses = np.where(np.isfinite(job.row_losses), job.row_losses, np.inf)
    if not (losses < BY_HEART).any():
        return 0
    train, valid = _name_rows(job.data.train), _name_rows(job.data.valid)
    seen = set(train)
    unseen_tokens = sum(
        row.trained_tokens
        for row, name in zip(job.data.valid, valid, strict=True)
        if name not in seen
    )
    all_tokens = sum(row.trained_tokens for row in job.data.valid)
    unseen_loss = valid_loss * all_tokens / unseen_tokens if unseen_tokens else np.inf
    copied = set(valid)
    has_copy = np.array([name in copied for name in train])
    limits = np.where(has_copy, BY_HEART, min(BY_HEART, UNSEEN_SHARE * unseen_loss))
    return int((losses < limits).sum())


def _name_rows(rows: Sequence[Example]) -> list[bytes]:
    """The same bytes for rows of the same tokens."""
    return [b"".join(sequence.tokens.tobytes() for sequence in row.sequences) for row in rows]
