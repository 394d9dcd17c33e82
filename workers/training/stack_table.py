"""Which rows of a layer's stack meet which tokens of a pack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from workers.protocol.adapter_layout import GROUPED_STEP
from workers.training.adapter_stack import Slot
from workers.training.packing import Pack


@dataclass(frozen=True, slots=True)
class OwnerTable:
    """For the dense form: who owns what."""

    #: ``bool[T, R]``: whether a token and a row are of the same job.
    own_TR: torch.Tensor
    #: ``float32[R]``: ``AdapterSpec.scale`` of each row's job.
    scale_R: torch.Tensor


@dataclass(slots=True)
class Run:
    """Tokens that lie side by side, and so do their adapters, all of as many rows."""

    #: Tokens of each adapter; without one, these tokens have no adapter here.
    lengths: list[int]
    #: First row.
    row: int = 0
    #: Of each adapter.
    rows: int = 0
    #: Scale of each adapter.
    scales: tuple[float, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def end_row(self) -> int:
        return self.row + self.rows * len(self.scales)


@dataclass(frozen=True, slots=True)
class RunTable:
    """For the grouped form: all tokens of a pack as runs, in their order."""

    runs: tuple[Run, ...]
    #: ``int32``: where each adapter's tokens end within its run, run after run.
    ends: torch.Tensor
    #: Rows that follow each other: those of a run, or of adapters that are in no run.
    row_sizes: tuple[int, ...]
    #: The place of each run's rows among these.
    row_places: tuple[int, ...]


def build_owner_table(pack: Pack, slots: Mapping[str, Slot], device: torch.device) -> OwnerTable:
    rows = sum(slot.rows for slot in slots.values())
    owner_T = np.full(pack.tokens, -1, dtype=np.int32)
    owner_R = np.full(rows, -2, dtype=np.int32)
    scale_R = np.zeros(rows, dtype=np.float32)
    for number, (name, slot) in enumerate(slots.items()):
        own = slice(slot.start, slot.start + slot.rows)
        owner_R[own], scale_R[own] = number, slot.scale
        for segment in pack.segments:
            if segment.job_id == name:
                owner_T[segment.start : segment.end] = number
    tokens, owners, scales = (
        torch.from_numpy(part).to(device) for part in (owner_T, owner_R, scale_R)
    )
    return OwnerTable(tokens[:, None] == owners[None, :], scales)


def build_run_table(
    pack: Pack, slots: Mapping[str, Slot], device: torch.device, *, together: bool
) -> RunTable:
    """Lay a pack's tokens out in runs.

    Parameters
    ----------
    together : bool
        Whether several adapters may be one run, for kernels that take groups.
    """
    runs: list[Run] = []
    at = 0
    for segment in (s for s in pack.segments if s.end > s.start):
        if segment.start > at:
            runs.append(Run([segment.start - at]))
        at, length = segment.end, segment.end - segment.start
        slot, last = slots.get(segment.job_id), runs[-1] if runs else None
        if slot is None:
            runs.append(Run([length]))
        elif (
            together
            and slot.rows % GROUPED_STEP == 0
            and last is not None
            and (last.rows, last.end_row) == (slot.rows, slot.start)
        ):
            last.lengths.append(length)
            last.scales += (slot.scale,)
        else:
            runs.append(Run([length], slot.start, slot.rows, (slot.scale,)))
    if pack.tokens > at:
        runs.append(Run([pack.tokens - at]))
    ends = [np.cumsum(run.lengths) for run in runs if run.rows]
    table = torch.from_numpy(np.concatenate([*ends, np.empty(0)]).astype(np.int32)).to(device)
    return RunTable(tuple(runs), table, *_divide_rows(runs, slots))


def _divide_rows(
    runs: list[Run], slots: Mapping[str, Slot]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    total = sum(slot.rows for slot in slots.values())
    cuts = {0, total} | {edge for run in runs if run.rows for edge in (run.row, run.end_row)}
    edges = sorted(cuts)
    sizes = tuple(int(size) for size in np.diff(edges))
    return sizes, tuple(edges.index(run.row) if run.rows else -1 for run in runs)
