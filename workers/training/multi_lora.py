"""The adapters of many jobs beside one frozen linear layer.

Each layer keeps all its adapters stacked: ``A_NRD`` and ``B_NRO``, a slot per job, ranks
padded with zeros to the largest. Padding never trains: its gradient is exactly zero
because the other half of the product is. A job's step touches only its own rows.

Three forms of the same arithmetic (the plain loop is in ``reference``):

``segments``
    One autograd node per layer; the base product, then two small products per job on
    the job's own rows. No arithmetic is spent on other jobs' rows, and no job's numbers
    ever meet another's. The form for CPUs.
``dense``
    Two products over all adapters side by side; entries of foreign adapters are set to
    zero in between. N times the arithmetic in few launches: the form for GPUs while the
    stacked rank is small.
``grouped``
    Grouped matrix products (CUDA kernels) for large stacked ranks.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from workers.training import dropout
from workers.training.adapter_products import compute_dense_delta, compute_grouped_delta
from workers.training.architectures import get_features
from workers.training.frozen_product import BLAS, FrozenProducts
from workers.training.frozen_weights import get_dense_weight, measure_lengths, multiply_frozen
from workers.training.packing import JobSegment, Pack
from workers.training.segments_linear import apply_segments
from workers.training.slot_table import Slot, SlotTable, build_slot_table

Form = Literal["segments", "dense", "grouped"]
#: Name of DoRA's lengths beside ``lora_A`` and ``lora_B``.
MAGNITUDE = "lora_magnitude"


class Stream:
    """What is being computed just now; shared by a model's layers."""

    def __init__(self) -> None:
        #: ``None`` outside of a forward or backward pass: adapters are then off.
        self.pack: Pack | None = None
        self.form: Form = "segments"
        #: What multiplies with the frozen weights.
        self.products: FrozenProducts = BLAS
        #: What the layers work out about the pack, by their slots.
        self.tables: dict[Any, SlotTable] = {}
        #: The table of a step of fixed shape, the same for all layers; ``None`` otherwise.
        self.fixed_table: SlotTable | None = None
        #: Counts up whenever a layer's stack moves to another place in memory.
        self.layout = 0

    @contextmanager
    def reading(self, pack: Pack | None) -> Iterator[None]:
        """Have layers read this pack meanwhile."""
        before, self.pack = self.pack, pack
        try:
            yield
        finally:
            self.pack = before


class MultiLoRALinear(nn.Module):
    """A frozen projection and the stacked adapters of the jobs that target it.

    Parameters
    ----------
    base : torch.nn.Module
        ``Linear``, GPT-2's ``Conv1D`` or a 4-bit layer.
    name : str
        The layer's full name in the model.
    """

    def __init__(self, base: nn.Module, *, name: str, stream: Stream) -> None:
        super().__init__()
        self.base = base
        self.name = name
        self.stream = stream
        self.in_features, self.out_features = get_features(base)
        self.slots: dict[str, Slot] = {}
        self.A_NRD: nn.Parameter | None = None
        self.B_NRO: nn.Parameter | None = None
        #: Whether the frozen weight is a plain matrix the fused form can use itself.
        self.plain = type(base) in (nn.Linear, Conv1D)
        self._column_keys: torch.Tensor | None = None
        #: Squared lengths of the frozen weights, ``float32[O]``; ``None`` until DoRA asks.
        self._squares_O: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pack = self.stream.pack
        A_NRD, B_NRO = self.A_NRD, self.B_NRO
        if pack is None or A_NRD is None or B_NRO is None:
            return self.base(x)
        owners = [(segment, self.slots.get(segment.job_id)) for segment in pack.segments]
        if self.stream.fixed_table is None and all(slot is None for _, slot in owners):
            return self.base(x)
        keep_TD = self._keep_mask(pack)
        if self.stream.form == "segments":
            spans = tuple(
                (slot.index, slot.rank, slot.scale, segment.start, segment.end, segment.dropout)
                for segment, slot in owners
                if slot is not None
            )
            weight_OD, bias = get_dense_weight(self.base) if self.plain else (None, None)
            products = self.stream.products
            out = apply_segments(x, weight_OD, bias, A_NRD, B_NRO, spans, keep_TD, products)
            return self._give_lengths(out if self.plain else self.base(x) + out, owners)
        x_TD = x.reshape(-1, self.in_features)
        if keep_TD is not None:
            assert pack.dropout_scale_T is not None
            x_TD = x_TD * keep_TD * pack.dropout_scale_T.to(x_TD.dtype)[:, None]
        delta = compute_dense_delta if self.stream.form == "dense" else compute_grouped_delta
        delta_TO = delta(x_TD, A_NRD, B_NRO, self._slot_table(pack))
        out = self.base(x) + delta_TO.view(*x.shape[:-1], self.out_features)
        return self._give_lengths(out, owners)

    def attach(
        self,
        job_id: str,
        *,
        rank: int,
        scale: float,
        A_RD: torch.Tensor,
        B_RO: torch.Tensor,
        magnitude_O: torch.Tensor | None = None,
        index: int | None = None,
    ) -> None:
        """Put a job's adapter into a free slot; others keep values and gradients.

        Parameters
        ----------
        index : int, optional
            The slot; by default the first free one.
        """
        assert job_id not in self.slots
        used = {slot.index for slot in self.slots.values()}
        if index is None:
            index = next(i for i in itertools.count() if i not in used)
        assert index not in used
        self._grow(slots=index + 1, rank=rank)
        self.slots[job_id] = slot = Slot(index, rank, scale)
        if magnitude_O is not None:
            device = next(self.base.parameters()).device
            slot.magnitude_O = nn.Parameter(magnitude_O.to(device, torch.float32, copy=True))
            slot.magnitude_O.grad = torch.zeros_like(slot.magnitude_O)
        for stacked, values in ((self.A_NRD, A_RD), (self.B_NRO, B_RO)):
            assert stacked is not None
            assert stacked.grad is not None
            stacked.data[index, :rank] = values
            stacked.grad[index].zero_()

    def detach(self, job_id: str) -> None:
        """Empty the job's slot. The last one out frees the stack."""
        slot = self.slots.pop(job_id)
        if not self.slots:
            self.A_NRD = self.B_NRO = None
            self.stream.layout += 1
            return
        for stacked in (self.A_NRD, self.B_NRO):
            assert stacked is not None
            assert stacked.grad is not None
            stacked.data[slot.index].zero_()
            stacked.grad[slot.index].zero_()

    def tensors(self, job_id: str) -> tuple[tuple[str, torch.Tensor, torch.Tensor], ...]:
        """The job's ``(name, values, gradient)``; those of A and B are views into the stacks."""
        slot = self.slots[job_id]
        views = []
        for name, stacked in (("lora_A", self.A_NRD), ("lora_B", self.B_NRO)):
            assert stacked is not None
            assert stacked.grad is not None
            own = slice(0, slot.rank)
            views.append((name, stacked.data[slot.index, own], stacked.grad[slot.index, own]))
        if slot.magnitude_O is not None:
            assert slot.magnitude_O.grad is not None
            views.append((MAGNITUDE, slot.magnitude_O.data, slot.magnitude_O.grad))
        return tuple(views)

    def reserve(self, slots: int) -> None:
        """Have at least so many slots, if there are any; what the new ones hold is zero."""
        if self.A_NRD is not None and self.A_NRD.shape[0] < slots:
            self._grow(slots=slots, rank=self.A_NRD.shape[1])

    def _grow(self, *, slots: int, rank: int) -> None:
        device = next(self.base.parameters()).device
        # GPU kernels want the rank aligned; slots grow in powers of two so that shapes repeat.
        if device.type == "cuda":
            slots = 1 << (slots - 1).bit_length()
            rank = -(-rank // 8) * 8
        widths = (self.in_features, self.out_features)
        for name, width in zip(("A_NRD", "B_NRO"), widths, strict=True):
            old: nn.Parameter | None = getattr(self, name)
            shape = (slots, rank, width)
            if old is not None:
                shape = (max(slots, old.shape[0]), max(rank, old.shape[1]), width)
                if shape == old.shape:
                    continue
            new = nn.Parameter(torch.zeros(shape, dtype=torch.float32, device=device))
            new.grad = torch.zeros_like(new)
            if old is not None:
                assert old.grad is not None
                new.data[: old.shape[0], : old.shape[1]] = old.data
                new.grad[: old.shape[0], : old.shape[1]] = old.grad
            setattr(self, name, new)
            self.stream.layout += 1

    def _keep_mask(self, pack: Pack) -> torch.Tensor | None:
        if pack.dropout_keys_T is None or pack.dropout_threshold_T is None:
            return None
        if self._column_keys is None:
            device = pack.dropout_keys_T.device
            self._column_keys = dropout.hash_columns(self.name, self.in_features, device)
        return dropout.draw_keep_mask(
            pack.dropout_keys_T, self._column_keys, pack.dropout_threshold_T
        )

    def _give_lengths(
        self, out: torch.Tensor, owners: Sequence[tuple[JobSegment, Slot | None]]
    ) -> torch.Tensor:
        """DoRA (Liu et al. 2024, eq. 5) on the rows of jobs that train so; others are untouched.

        What base and adapter give, less the bias, is the product with their summed weights: so each
        output is divided by the length of its weights and multiplied by the learnt one. The length
        has no gradient of its own (section 4.3). PEFT drops inputs of the frozen product out as
        well where an adapter has dropout; here only the adapter's are.
        """
        out_TO = out.reshape(-1, self.out_features)
        parts: list[torch.Tensor] = []
        at = 0
        for segment, slot in owners:
            if slot is None or slot.magnitude_O is None:
                continue
            factor_O = (slot.magnitude_O / self._compute_lengths(slot)).to(out.dtype)
            rows_TO = out_TO[segment.start : segment.end]
            bias: Any = self.base.bias
            own_TO = rows_TO * factor_O if bias is None else (rows_TO - bias) * factor_O + bias
            parts += [out_TO[at : segment.start], own_TO]
            at = segment.end
        if not parts:
            return out
        return torch.cat([*parts, out_TO[at:]]).view(out.shape)

    @torch.no_grad()
    def _compute_lengths(self, slot: Slot) -> torch.Tensor:
        """``float32[O]``: lengths of the frozen weights with the adapter's added to them.

        By their squares, so that no matrix of the layer's size is made.
        """
        assert self.A_NRD is not None
        assert self.B_NRO is not None
        if self._squares_O is None:
            self._squares_O = measure_lengths(self.base).square()
        A_RD = self.A_NRD[slot.index, : slot.rank]
        B_RO = self.B_NRO[slot.index, : slot.rank] * slot.scale
        crossed_O = (B_RO * multiply_frozen(self.base, A_RD)).sum(0)
        own_O = (B_RO * (A_RD @ A_RD.T @ B_RO)).sum(0)
        return (self._squares_O + 2 * crossed_O + own_O).clamp(min=0).sqrt()

    def _slot_table(self, pack: Pack) -> SlotTable:
        """Made once per pack for all layers with the same slots."""
        if self.stream.fixed_table is not None:
            return self.stream.fixed_table
        key = tuple((name, slot.index, slot.scale) for name, slot in self.slots.items())
        assert self.A_NRD is not None
        stacked = self.A_NRD.shape[0]
        found = self.stream.tables.get((key, stacked))
        if found is None:
            found = build_slot_table(
                pack, self.slots, slots_count=stacked, device=self.A_NRD.device
            )
            self.stream.tables[key, stacked] = found
        return found


def draw_initial_down(*, name: str, seed: int, rank: int, width: int) -> torch.Tensor:
    """PEFT's initial ``A`` (Kaiming uniform, a = sqrt 5), from a generator of its own.

    The values depend on the job's seed and the layer's name only: neither on the order
    of layers nor on who else is on the node.
    """
    generator = torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(name.encode()))
    values = torch.empty(rank, width)
    nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
    return values
