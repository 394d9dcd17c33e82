"""How many CPU threads a base model is fastest with.

Small products on a busy machine lose more by waiting for each other's threads than they
gain; large ones gain. Neither size nor load is known beforehand, so it is measured.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from workers.protocol.messages import AdapterSpec
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, Share, TokenSequence, pack_shares

_TOKENS = 128
_REPEATS = 3
#: More threads must be faster by this factor to be worth the cores they take.
_WORTH = 0.9


def use_best_threads(model: PackedModel) -> int:
    """Measure one thread against all, and set the calling thread to the better.

    Call on the thread that trains, while no job is on the model: OpenMP keeps the number
    per thread.
    """
    every = torch.get_num_threads()
    if model.device.type != "cpu" or every == 1:
        return every
    seconds = {count: _seconds(model, count) for count in (1, every)}
    best = every if seconds[every] < _WORTH * seconds[1] else 1
    torch.set_num_threads(best)
    return best


def _seconds(model: PackedModel, threads: int) -> float:
    torch.set_num_threads(threads)
    job_id = "threads"
    adapter = AdapterSpec(rank=8)
    length = min(_TOKENS, model.context_length)
    tokens = np.zeros(length, dtype=np.int64)
    sequence = TokenSequence(tokens, np.zeros(length, dtype=np.float32))
    pack = pack_shares([Share(job_id, (Example(1, (sequence,)),), 0, 0)], device=model.device)
    model.attach(job_id, adapter, model.initial_values(adapter, seed=0, labels=2))
    try:
        best = float("inf")
        for _ in range(_REPEATS):
            began = time.perf_counter()
            with model.streaming(pack):
                model.hidden(pack).sum().backward()
            best = min(best, time.perf_counter() - began)
        return best
    finally:
        model.detach(job_id)
