"""What a warm base, and each of a few adapters, loses on some rows.

It runs on the training loop's thread, between two steps of the jobs there: the base and the
adapters together in one pack, or in a few where they do not fit. An adapter is on the base for its
own pack only, so that whatever is in it no job's step meets it.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from workers.protocol.job_spec import AdapterSpec
from workers.protocol.probes import ProbeLoss, ProbeResult, ProbeTask
from workers.runtime.resident import ResidentBase
from workers.training.data import TokenizerEncoder, prepare_data
from workers.training.faults import SystemFault, TrainingFault, is_out_of_memory
from workers.training.objective import compute_sequence_nll
from workers.training.pack_plan import count_fitting
from workers.training.packing import Example, PackShare, build_pack
from workers.training.samples import name_stop_tokens
from workers.training.start_values import load_start_values

log = logging.getLogger(__name__)

#: Trained tokens of each row on which adapters are compared.
TRAINED_MAX = 32

Losses = list[float | None]
#: Runs something between two steps on the loop's thread and waits for it.
Call = Callable[[Callable[[], Losses]], Losses]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An adapter in the engine's layout."""

    name: str
    spec: AdapterSpec
    values: dict[str, torch.Tensor]


def answer_probe(
    probe: ProbeTask,
    *,
    resident: ResidentBase,
    paths: Mapping[str, Path],
    call: Call,
    is_over: Callable[[], bool],
) -> ProbeResult:
    """Measure the base's loss on the probe's rows, and each adapter's.

    Parameters
    ----------
    paths : mapping of str to Path
        Zips of the adapters by name; one that is not there is not measured.
    call : callable
        Runs a measurement on the loop's thread.
    is_over : callable
        Whether the time for the answer has passed: what is left is not measured.

    Returns
    -------
    ProbeResult
        Losses are means over the trained tokens, in nats. An adapter's is measured where rows
        begin to be trained (``TRAINED_MAX``), beside the base's there, and reported in proportion
        to the base's on whole rows.
    """
    began = time.monotonic()
    try:
        rows = _read_rows(probe, resident)
    except TrainingFault as fault:
        log.info("the rows of a probe cannot be used: %s", fault)
        return ProbeResult(None)
    bare = AdapterSpec(rank=1, alpha=1.0)
    base = _Candidate("", bare, resident.model.draw_initial_values(bare, seed=0))
    [whole] = call(lambda: _measure(resident, rows, [base]))
    starts = tuple(_cut(row) for row in rows)
    waiting = _load_candidates(probe, resident, paths)
    found: dict[str, float | None] = {}
    if any(start is not row for start, row in zip(starts, rows, strict=True)):
        waiting.insert(0, base)
    else:
        found[base.name] = whole
    together = max(1, resident.trainer.token_budget // sum(row.token_count for row in starts))
    while waiting and not is_over():
        group = waiting[:together]
        losses = call(lambda group=group: _measure(resident, starts, group))
        if len(group) > 1 and all(loss is None for loss in losses):
            # They had no room beside each other.
            together = len(group) // 2
            continue
        found |= {one.name: loss for one, loss in zip(group, losses, strict=True)}
        waiting = waiting[len(group) :]
    at_start = found.get(base.name)
    factor = None if whole is None or not at_start else whole / at_start
    answers = tuple(
        ProbeLoss(one.name, None if factor is None or loss is None else loss * factor)
        for one in probe.adapters
        for loss in [found.get(one.name)]
    )
    return ProbeResult(whole, answers, round(time.monotonic() - began, 3))


def _load_candidates(
    probe: ProbeTask, resident: ResidentBase, paths: Mapping[str, Path]
) -> list[_Candidate]:
    """Those of a probe's adapters that are there and can be used."""
    loaded: list[_Candidate] = []
    for adapter in probe.adapters:
        path, spec = paths.get(adapter.name), adapter.spec
        if path is None:
            continue
        try:
            shapes = resident.model.list_shapes(spec)
            values = load_start_values(path, shapes=shapes, scale=adapter.scale)
        except TrainingFault as fault:
            log.info("adapter %s cannot be probed: %s", adapter.name, fault)
            continue
        loaded.append(_Candidate(adapter.name, spec, values))
    return loaded


def _read_rows(probe: ProbeTask, resident: ResidentBase) -> tuple[Example, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("".join(f"{row}\n" for row in probe.rows), encoding="utf-8")
        return prepare_data(
            encoder=TokenizerEncoder(
                resident.tokenizer, stops=name_stop_tokens(resident.model, resident.tokenizer)
            ),
            data_path=path,
            validation_path=None,
            data_format=probe.data_format,
            skip_lines=(),
            sequence_length=min(probe.sequence_length, resident.model.context_length),
            validation_share=0.0,
            seed=0,
        ).train


def _cut(row: Example) -> Example:
    """A row up to its last trained token that counts."""
    [sequence] = row.sequences
    trained = np.flatnonzero(sequence.weights)
    if len(trained) <= TRAINED_MAX:
        return row
    return replace(row, sequences=(sequence.cut(int(trained[TRAINED_MAX - 1]) + 1),))


def _measure(
    resident: ResidentBase, rows: tuple[Example, ...], group: Sequence[_Candidate]
) -> Losses:
    """Mean losses on the rows with each adapter; ``None``: there was no room, or no number."""
    resident.apply_threads()
    names = {one.name: f"probe {index}" for index, one in enumerate(group)}
    try:
        for one in group:
            resident.model.attach(names[one.name], one.spec, one.values, answers=True)
        sums = [0.0] * len(group)
        at = 0
        sizes = [len(group) * row.token_count for row in rows]
        while at < len(rows):
            some = rows[at : at + max(1, count_fitting(sizes[at:], resident.trainer.token_budget))]
            losses = _sum_losses(resident, some, list(names.values()))
            sums = [before + loss for before, loss in zip(sums, losses, strict=True)]
            at += len(some)
    except Exception as error:
        if not isinstance(error, SystemFault) and not is_out_of_memory(error):
            raise
        return [None] * len(group)
    finally:
        for name in names.values():
            resident.model.detach(name)
    weight = sum(row.trained_tokens for row in rows)
    return [total / weight if math.isfinite(total) else None for total in sums]


@torch.no_grad()
def _sum_losses(
    resident: ResidentBase, rows: tuple[Example, ...], names: Sequence[str]
) -> list[float]:
    """Summed loss of the same rows under each adapter, in one pass over one pack."""
    model = resident.model
    shares = [PackShare(name, rows, 0, 0) for name in names]
    pack = build_pack(shares, device=model.device, pad_to=resident.trainer.pad_to)
    # The form that keeps rows apart: a number that is not finite stays its adapter's own.
    with model.streaming(pack, form="segments", answers=True):
        nll_S = compute_sequence_nll(model, pack, model.hidden(pack))
    by_share = nll_S[: len(names) * len(rows)].reshape(len(names), len(rows))
    return by_share.sum(1).tolist()
