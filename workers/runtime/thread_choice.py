"""How many CPU threads a base model is fastest with.

Small products on a busy machine lose more by waiting for each other's threads than they
gain; large ones gain. Neither size nor load is known beforehand, so it is measured.
"""

from __future__ import annotations

import torch

from workers.training.packed_model import PackedModel
from workers.training.rehearsal import time_pass

#: More threads must be faster by this factor to be worth the cores they take.
_WORTH = 0.9
_TOKENS = 128


def use_best_threads(model: PackedModel) -> int:
    """Measure one thread against all, and set the calling thread to the better.

    Call on the thread that trains, while no job is on the model: OpenMP keeps the number
    per thread.
    """
    every = torch.get_num_threads()
    if model.device.type != "cpu" or every == 1:
        return every
    seconds = {}
    for count in (1, every):
        torch.set_num_threads(count)
        seconds[count] = time_pass(model, tokens=_TOKENS)
    best = every if seconds[every] < _WORTH * seconds[1] else 1
    torch.set_num_threads(best)
    return best
