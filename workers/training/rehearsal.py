"""A small training pass on a base without jobs, to measure choices by."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from workers.protocol.job_spec import AdapterSpec
from workers.training.packed_model import PackedModel
from workers.training.packing import Example, Pack, PackShare, TokenSequence, build_pack

_JOB = "rehearsal"


@contextmanager
def rehearsal(model: PackedModel, *, tokens: int) -> Iterator[Pack]:
    """A pack of one sequence, and an adapter beside every target layer meanwhile."""
    adapter = AdapterSpec(rank=8)
    model.attach(_JOB, adapter, model.draw_initial_values(adapter, seed=0, labels=2))
    try:
        yield build_rehearsal_pack(model, lengths=(min(tokens, model.context_length),))
    finally:
        model.detach(_JOB)


def build_rehearsal_pack(model: PackedModel, *, lengths: tuple[int, ...]) -> Pack:
    """A pack of sequences of random tokens, one of each length, all of one job."""
    random = np.random.default_rng(0)
    examples = []
    for line, length in enumerate(lengths, start=1):
        tokens = random.integers(0, model.shape.vocab_size, length)
        weights = np.ones(length, dtype=np.float32)
        weights[:1] = 0
        examples.append(Example(line, (TokenSequence(tokens, weights),)))
    return build_pack([PackShare(_JOB, tuple(examples), 0, 0)], device=model.device)


def time_pass(model: PackedModel, *, tokens: int) -> float:
    """The best time of three forward and backward passes, after one to warm up."""
    with rehearsal(model, tokens=tokens) as pack:
        best = float("inf")
        for _ in range(4):
            wait_for_device(model)
            began = time.perf_counter()
            with model.streaming(pack):
                model.hidden(pack).float().sum().backward()
            wait_for_device(model)
            best = min(best, time.perf_counter() - began)
    return best


def wait_for_device(model: PackedModel) -> None:
    """Wait for what the device still has to do."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
