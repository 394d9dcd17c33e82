"""The adapters of many jobs beside one frozen linear layer.

Each layer keeps all its adapters in two flat matrices, one after the other (``adapter_stack``).
A job's step touches only its own rows. Adapters that only answer questions have matrices of
their own, without gradients.

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
    Each adapter on its own tokens, for large stacked ranks. Neighbours of one rank are one
    grouped product where the GPU has a kernel for it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from workers.protocol.adapter_layout import GROUPED_STEP
from workers.protocol.job_spec import AdapterSpec
from workers.training import dropout
from workers.training.adapter_products import (
    compute_dense_delta,
    compute_grouped_delta,
    is_grouped_usable,
)
from workers.training.adapter_stack import AdapterStack, Slot
from workers.training.architectures import get_features
from workers.training.frozen_product import BLAS, FrozenProducts
from workers.training.frozen_weights import get_dense_weight, measure_lengths, multiply_frozen
from workers.training.packing import JobSegment, Pack, move
from workers.training.segments_linear import apply_segments
from workers.training.stack_table import build_owner_table, build_run_table

Form = Literal["segments", "dense", "grouped"]


class Stream:
    """What is being computed just now; shared by a model's layers."""

    def __init__(self) -> None:
        #: ``None`` outside of a forward or backward pass: adapters are then off.
        self.pack: Pack | None = None
        self.form: Form = "segments"
        #: What multiplies with the frozen weights.
        self.products: FrozenProducts = BLAS
        #: Whether the adapters are those that answer questions.
        self.answers = False
        #: What the layers work out about the pack, by their slots, and its copies by device.
        self.tables: dict[Any, Any] = {}

    @contextmanager
    def passing(
        self, pack: Pack | None, form: Form, *, answers: bool, tables: dict[Any, Any] | None
    ) -> Iterator[None]:
        """Compute a pack, or a part of it, meanwhile; as ``PackedModel.streaming``."""
        self.pack, self.form, self.answers = pack, form, answers
        self.tables = {} if tables is None else tables
        try:
            yield
        finally:
            self.pack, self.answers = None, False

    def move(self, value: Any, device: torch.device) -> Any:
        """As ``packing.move``, once in a pass."""
        at = value.tokens_T if isinstance(value, Pack) else value
        if isinstance(at, torch.Tensor) and at.device == device:
            return value
        key = id(value), device
        if key not in self.tables:
            # with the value, so that no other gets its id
            self.tables[key] = value, move(value, device)
        return self.tables[key][1]

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
        self.trained = AdapterStack(trains=True)
        self.answering = AdapterStack(trains=False)
        #: Whether the frozen weight is a plain matrix the fused form can use itself.
        self.plain = type(base) in (nn.Linear, Conv1D)
        self._column_keys: torch.Tensor | None = None
        #: Squared lengths of the frozen weights, ``float32[O]``; ``None`` until DoRA asks.
        self._squares_O: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        return next(self.base.parameters()).device

    @property
    def stack(self) -> AdapterStack:
        """The adapters that are used just now."""
        return self.answering if self.stream.answers else self.trained

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pack, stack = self.stream.pack, self.stack
        A_RD, B_RO = stack.A_RD, stack.B_RO
        if pack is None or A_RD is None or B_RO is None:
            return self.base(x)
        owners = [(segment, stack.slots.get(segment.job_id)) for segment in pack.segments]
        if all(slot is None for _, slot in owners):
            return self.base(x)
        keep_TD = self._keep_mask(pack, owners)
        if self.stream.form == "segments":
            spans = tuple(
                (slot.start, slot.rank, slot.scale, segment.start, segment.end, segment.dropout)
                for segment, slot in owners
                if slot is not None
            )
            weight_OD, bias = get_dense_weight(self.base) if self.plain else (None, None)
            products = self.stream.products
            out = apply_segments(x, weight_OD, bias, A_RD, B_RO, spans, keep_TD, products)
            return self._give_lengths(out if self.plain else self.base(x) + out, owners)
        x_TD = x.reshape(-1, self.in_features)
        if keep_TD is not None:
            assert pack.dropout_scale_T is not None
            x_TD = x_TD * keep_TD * pack.dropout_scale_T.to(x_TD.dtype)[:, None]
        delta = compute_dense_delta if self.stream.form == "dense" else compute_grouped_delta
        delta_TO = delta(x_TD, A_RD, B_RO, self._find_table(pack))
        out = self.base(x) + delta_TO.view(*x.shape[:-1], self.out_features)
        return self._give_lengths(out, owners)

    def _keep_mask(
        self, pack: Pack, owners: Sequence[tuple[JobSegment, Slot | None]]
    ) -> torch.Tensor | None:
        if pack.dropout_keys_T is None or pack.dropout_threshold_T is None:
            return None
        if not any(slot is not None and segment.dropout > 0 for segment, slot in owners):
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
        stack = self.stack
        assert stack.A_RD is not None
        assert stack.B_RO is not None
        if slot.lengths_O is not None:
            return slot.lengths_O
        if self._squares_O is None:
            self._squares_O = measure_lengths(self.base).square()
        own = slice(slot.start, slot.start + slot.rank)
        A_RD, B_RO = stack.A_RD[own].float(), stack.B_RO[own].float() * slot.scale
        crossed_O = (B_RO * multiply_frozen(self.base, A_RD)).sum(0)
        own_O = (B_RO * (A_RD @ A_RD.T @ B_RO)).sum(0)
        lengths_O = (self._squares_O + 2 * crossed_O + own_O).clamp(min=0).sqrt()
        if not stack.trains:
            slot.lengths_O = lengths_O
        return lengths_O

    def _find_table(self, pack: Pack) -> Any:
        """What the form needs to know; made once per pack and device for layers of like slots."""
        stack, device = self.stack, pack.tokens_T.device
        is_even = (self.in_features | self.out_features) % GROUPED_STEP == 0
        rows = tuple((name, slot.start) for name, slot in stack.slots.items())
        key = is_even, device, pack.tokens, pack.segments, rows
        found = self.stream.tables.get(key)
        if found is None and self.stream.form == "dense":
            found = build_owner_table(pack, stack.slots, device)
        elif found is None:
            together = is_even and is_grouped_usable(device)
            found = build_run_table(pack, stack.slots, device, together=together)
        self.stream.tables[key] = found
        return found


def draw_initial_down(*, name: str, seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """PEFT's initial ``A`` (Kaiming uniform, a = sqrt 5), from a generator of its own.

    Experts' are one below the other. The values depend on the job's seed and the layer's name only:
    neither on the order of layers nor on who else is on the node.
    """
    generator = torch.Generator().manual_seed((seed << 32) ^ zlib.crc32(name.encode()))
    values = torch.empty(math.prod(shape[:-1]), shape[-1])
    nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
    return values.view(shape)


def draw_initial_prompt(
    embed: nn.Embedding, adapter: AdapterSpec, *, seed: int, tokenizer: Any
) -> torch.Tensor:
    """A soft prompt's start: embeddings of its initial text, or of random tokens."""
    count = adapter.virtual_tokens
    ids: list[int] = []
    if adapter.init_text.strip():
        ids = tokenizer(adapter.init_text, add_special_tokens=False).input_ids
    if ids:
        tokens = torch.tensor((ids * (count // len(ids) + 1))[:count])
    else:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(embed.num_embeddings, (count,), generator=generator)
    return embed(tokens.to(embed.weight.device)).detach().to("cpu", torch.float32)
