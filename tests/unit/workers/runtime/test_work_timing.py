"""Timed steps are told with what they consist of, and leave nothing behind."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from workers.models import BUNDLED_PREFIX, TINY
from workers.protocol.job_spec import BaseModelRef
from workers.runtime.resident import load_resident
from workers.runtime.work_timing import TimedRows, spread_evenly, time_work


@pytest.fixture(scope="module")
def resident():
    ref = BaseModelRef(name=TINY, source=f"{BUNDLED_PREFIX}{TINY}")
    return load_resident(ref, device=torch.device("cpu"), limit_gb=8.0)


def test_steps_are_counted_row_by_row_and_the_best_of_the_repeats_is_told(resident):
    context = resident.model.context_length
    rows = (10 / context, 20 / context, 30 / context, 40 / context)
    cases = (
        TimedRows("mixed", rows, 2, trained=0.5),
        TimedRows("equal", (10 / context,) * 4, 4),
    )
    clock = count()
    mixed, equal = time_work(resident, cases, repeats=2, clock=lambda: float(next(clock)))
    assert (mixed.steps, mixed.sequences, mixed.tokens) == (2, 4, 100)
    assert (mixed.trained_tokens, mixed.token_pairs, mixed.even) == (50, 3000, False)
    assert (equal.steps, equal.tokens, equal.trained_tokens, equal.even) == (1, 40, 36, True)
    # The clock is read before the steps, after them, and after the forward pass.
    assert (mixed.seconds, mixed.forward_seconds) == (1.0, 1.0)
    assert resident.trainer.jobs == {}


def test_lengths_are_spread_from_low_to_high():
    lengths = spread_evenly(0.0, 1.0, 4)
    assert sorted(lengths) == [0.125, 0.375, 0.625, 0.875]
