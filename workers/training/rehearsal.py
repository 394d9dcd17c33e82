"""A small training pass on a base nobody trains on yet, to measure choices by."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from workers.protocol.messages import AdapterSpec
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, Pack, Share, TokenSequence, pack_shares

_JOB = "rehearsal"


@contextmanager
def rehearsal(model: PackedModel, *, tokens: int) -> Iterator[Pack]:
    """A pack of one sequence, and an adapter beside every target layer meanwhile."""
    length = min(tokens, model.context_length)
    tokens_T = np.random.default_rng(0).integers(0, model.model.config.vocab_size, length)
    weights = np.ones(length, dtype=np.float32)
    weights[0] = 0
    sequence = TokenSequence(tokens_T, weights)
    share = Share(_JOB, (Example(1, (sequence,)),), 0, 0)
    adapter = AdapterSpec(rank=8)
    model.attach(_JOB, adapter, model.initial_values(adapter, seed=0, labels=2))
    try:
        yield pack_shares([share], device=model.device)
    finally:
        model.detach(_JOB)


def pass_seconds(model: PackedModel, *, tokens: int, repeats: int = 3) -> float:
    """The best time of a forward and backward pass, after one to warm up."""
    with rehearsal(model, tokens=tokens) as pack:
        best = float("inf")
        for _ in range(repeats + 1):
            settle(model)
            began = time.perf_counter()
            with model.streaming(pack):
                model.hidden(pack).float().sum().backward()
            settle(model)
            best = min(best, time.perf_counter() - began)
    return best


def settle(model: PackedModel) -> None:
    """Wait for what the device still has to do."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
