"""Where the adapters of a pack's tokens sit in a layer's stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from workers.training.packing import JobSegment, Pack


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Which adapter slot each token of a pack belongs to."""

    #: ``bool[T, N]``.
    own_TN: torch.Tensor
    #: ``float32[N]``: ``AdapterSpec.scale`` of each slot.
    scale_N: torch.Tensor
    #: ``int64[T]``: tokens in the order of slots, those without one last.
    order_T: torch.Tensor
    #: ``int32[N + 1]``: where each slot's tokens end in that order.
    ends: torch.Tensor


@dataclass(slots=True)
class Slot:
    """Where one job's adapter sits in a layer."""

    index: int
    rank: int
    #: ``AdapterSpec.scale``.
    scale: float
    #: ``float32[O]`` of DoRA: the learnt length of each output's weights.
    magnitude_O: nn.Parameter | None = None


def build_slot_table(
    pack: Pack, slots: dict[str, Slot], *, slots_count: int, device: torch.device
) -> SlotTable:
    """Where each token's adapter sits; built on the host and moved in two transfers."""
    owners = [(segment, slots.get(segment.job_id)) for segment in pack.segments]
    found = [(segment, slot.index, slot.scale) for segment, slot in owners if slot is not None]
    parts = build_table_arrays(found, tokens=pack.tokens, slots_count=slots_count)
    return SlotTable(*(torch.from_numpy(part).to(device) for part in parts))


def build_table_arrays(
    owners: Sequence[tuple[JobSegment, int, float]], *, tokens: int, slots_count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A ``SlotTable``'s fields from each segment's slot and scale."""
    slot_T = np.full(tokens, -1, dtype=np.int64)
    scale_N = np.zeros(slots_count, dtype=np.float32)
    for segment, index, scale in owners:
        slot_T[segment.start : segment.end] = index
        scale_N[index] = scale
    group_T = np.where(slot_T < 0, slots_count, slot_T)
    order_T = np.argsort(group_T, kind="stable")
    ends = np.bincount(group_T, minlength=slots_count + 1).cumsum().astype(np.int32)
    own_TN = slot_T[:, None] == np.arange(slots_count)[None, :]
    return own_TN, scale_N, order_T, ends
