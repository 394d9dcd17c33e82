"""Forward and backward of a pack in a fixed shape, from fixed buffers.

What differs between two packs of one shape is data only: tokens, where sequences begin,
who owns a token, what is predicted and how much it weighs. All of it lies in buffers that
are written before each run, so a run can be recorded once (``graphs``). What a pack leaves
free is padding: sequences of no job, whose losses weigh nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from workers.training.multi_lora import Form
from workers.training.objective import compute_sequence_nll
from workers.training.packed_model import PackedModel
from workers.training.packing import Bucket, Pack
from workers.training.slot_table import SlotTable, build_table_arrays


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sizes of a step; what belongs in one bucket shares them."""

    tokens: int
    #: Sequences, padding included; at least one is padding.
    sequences: int
    #: Tokens a sequence may have.
    longest: int
    #: Trained tokens.
    predictions: int
    #: Whether any job drops out.
    drops: bool

    @classmethod
    def of(cls, pack: Pack, *, context: int) -> StepShape:
        """The smallest bucket that holds a pack made without padding.

        Tokens are rounded up to an eighth of the power of two below them, so at most an
        eighth of a step is padding; the other sizes, which cost little, more coarsely, so
        that shapes repeat.
        """
        tokens = _rounded(pack.tokens, least=16)
        longest = min(_rounded(pack.longest, least=16, parts=2), context)
        padding = -(-(tokens - pack.tokens) // longest)
        return cls(
            tokens=tokens,
            sequences=_rounded(len(pack.starts) + padding, least=8, parts=2),
            longest=longest,
            predictions=_rounded(int(pack.predict_M.numel()), least=16, parts=4),
            drops=pack.dropout_keys_T is not None,
        )


def _rounded(count: int, *, least: int, parts: int = 8) -> int:
    """Up to a multiple of ``least`` and of the ``parts``-th of the power of two below."""
    grain = max(least, (1 << max(count - 1, 1).bit_length()) // (2 * parts))
    return -(-count // grain) * grain


class RecordedStep:
    """The buffers of one shape and the computation on them.

    Parameters
    ----------
    form : Form
        Of the adapters; not ``segments``, which works out its shapes on the host.
    """

    def __init__(self, model: PackedModel, shape: StepShape, *, form: Form) -> None:
        device, tokens, sequences = model.device, shape.tokens, shape.sequences
        assert form != "segments"
        self.model = model
        self.shape = shape
        self.form: Form = form
        self.slots = model.slot_count

        def whole(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int64, device=device)

        def word(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int32, device=device)

        #: ``float32[S]``: what a sequence's loss counts for; 0 for padding.
        self.weight_S = torch.zeros(sequences, device=device)
        #: ``float32[S]``: the result.
        self.nll_S = torch.zeros(sequences, device=device)
        self.table = SlotTable(
            own_TN=torch.zeros(tokens, self.slots, dtype=torch.bool, device=device),
            scale_N=torch.zeros(self.slots, device=device),
            order_T=whole(tokens),
            ends=word(self.slots + 1),
        )
        bucket = Bucket(
            gather=whole(sequences * shape.longest),
            sequences=sequences,
            length=shape.longest,
            real=whole(tokens),
            stream=torch.arange(tokens, device=device),
            key_mask=None,
        )
        self.pack = Pack(
            shares=(),
            segments=(),
            tokens_T=whole(tokens),
            positions_T=whole(tokens),
            starts=np.zeros(sequences + 1, dtype=np.int32),
            starts_S=word(sequences + 1),
            longest=shape.longest,
            buckets=(bucket,),
            predict_M=whole(shape.predictions),
            targets_M=whole(shape.predictions),
            sequence_M=whole(shape.predictions),
            dropout_keys_T=word(tokens) if shape.drops else None,
            dropout_threshold_T=word(tokens) if shape.drops else None,
            dropout_scale_T=torch.ones(tokens, device=device) if shape.drops else None,
        )

    def load(self, pack: Pack, weights: list[float]) -> None:
        """Put a pack into the buffers.

        Parameters
        ----------
        weights : list of float
            Per share of the pack, what each of its sequences' losses counts for.
        """
        fixed = self.pack
        for buffer, values, rest in (
            (fixed.tokens_T, pack.tokens_T, 0),
            (fixed.positions_T, pack.positions_T, 0),
            (fixed.predict_M, pack.predict_M, 0),
            (fixed.targets_M, pack.targets_M, 0),
            # the last sequence is padding, whose losses weigh nothing
            (fixed.sequence_M, pack.sequence_M, self.shape.sequences - 1),
            (fixed.dropout_keys_T, pack.dropout_keys_T, 0),
            (fixed.dropout_threshold_T, pack.dropout_threshold_T, 0),
            (fixed.dropout_scale_T, pack.dropout_scale_T, 1),
        ):
            if buffer is not None:
                assert values is not None
                buffer[: len(values)].copy_(values)
                buffer[len(values) :].fill_(rest)
        starts = self._starts(pack)
        self._put(fixed.starts_S, starts)
        gather, real = _padded_rows(starts, self.shape.longest)
        bucket = fixed.buckets[0]
        assert bucket.gather is not None
        assert bucket.real is not None
        self._put(bucket.gather, gather)
        self._put(bucket.real, real)
        counts = [sum(len(e.sequences) for e in share.examples) for share in pack.shares]
        weight_S = np.zeros(self.shape.sequences, dtype=np.float32)
        weight_S[: sum(counts)] = np.repeat(weights, counts)
        self._put(self.weight_S, weight_S)
        owners = [(segment, *self.model.slots[segment.job_id]) for segment in pack.segments]
        arrays = build_table_arrays(owners, tokens=self.shape.tokens, slots_count=self.slots)
        buffers = (self.table.own_TN, self.table.scale_N, self.table.order_T, self.table.ends)
        for buffer, values in zip(buffers, arrays, strict=True):
            self._put(buffer, values)

    def clear(self) -> None:
        """Let nothing weigh anything: a run then adds zero to every gradient."""
        self.weight_S.zero_()

    def compute(self) -> None:
        """Add the gradients of the weighted losses, and leave the losses in ``nll_S``."""
        with self.model.streaming(self.pack, form=self.form, table=self.table):
            nll_S = compute_sequence_nll(self.model, self.pack, self.model.hidden(self.pack))
            self.nll_S.copy_(nll_S.detach())
            (nll_S * self.weight_S).sum().backward()

    def _starts(self, pack: Pack) -> np.ndarray:
        """Where sequences begin: the pack's, then padding, then empty ones."""
        starts = np.full(self.shape.sequences + 1, self.shape.tokens, dtype=np.int32)
        starts[: len(pack.starts)] = pack.starts
        padding = np.arange(pack.tokens, self.shape.tokens, self.shape.longest, dtype=np.int32)
        first = len(pack.starts) - 1
        starts[first : first + len(padding)] = padding
        return starts

    def _put(self, buffer: torch.Tensor, values: np.ndarray) -> None:
        buffer.copy_(torch.from_numpy(values), non_blocking=True)


def _padded_rows(starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Stream positions ``[S * L]`` of padded rows, and the place in them of each token."""
    sizes = np.diff(starts)
    columns = np.arange(length)
    real = columns[None, :] < sizes[:, None]
    first = np.minimum(starts[:-1], starts[-1] - 1)[:, None]
    gather = np.where(real, first + columns[None, :], first)
    return gather.reshape(-1).astype(np.int64), np.flatnonzero(real.reshape(-1))
