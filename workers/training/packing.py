"""Sequences of many jobs, sorted by adapter, as one token stream."""

from __future__ import annotations

import math
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from workers.training import dropout
from workers.training.key_values import KeyValues


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One sequence as the model sees it."""

    tokens: np.ndarray
    #: Same length: 1 where the loss counts this token as a target, else 0. Never on the first.
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> TokenSequence:
        """Its first tokens; itself when it has no more."""
        if len(self) <= length:
            return self
        return TokenSequence(self.tokens[:length], self.weights[:length])


@dataclass(frozen=True, slots=True)
class Example:
    """One training example: a sequence, or a preferred and a rejected one."""

    #: Line of the data set's file, from 1.
    line: int
    sequences: tuple[TokenSequence, ...]
    #: Class of the whole sequence (encoder classification).
    label: int | None = None

    @property
    def token_count(self) -> int:
        return sum(len(sequence) for sequence in self.sequences)

    @property
    def trained_tokens(self) -> int:
        return int(sum(int(sequence.weights.sum()) for sequence in self.sequences))


@dataclass(frozen=True, slots=True)
class PackShare:
    """What one job puts into one pack."""

    job_id: str
    #: Examples of the job's current batch, in order.
    examples: tuple[Example, ...]
    #: Place of the first one in the batch.
    first_row: int
    #: Optimizer step the examples belong to (0 for evaluation).
    step: int
    seed: int = 0
    dropout: float = 0.0
    #: NEFTune's alpha; 0: no noise.
    noise: float = 0.0
    #: Tokens put before each sequence by a soft prompt.
    virtual_tokens: int = 0


@dataclass(frozen=True, slots=True)
class JobSegment:
    """The tokens of one job: ``start:end`` of the stream."""

    job_id: str
    start: int
    end: int
    dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences of like length which share one attention call."""

    #: ``int64[S * L]``: stream positions, a row per sequence, padded on the right.
    gather: torch.Tensor | None
    sequences: int
    length: int
    #: ``int64``: places in the padded rows of the real tokens, in stream order.
    real: torch.Tensor | None
    #: ``int64``: stream positions of those tokens.
    stream: torch.Tensor | None
    #: ``bool[S, L]``: real tokens; ``None`` when nothing is padded.
    key_mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Pack:
    """One token stream, ready for the model. All tensors are on its device."""

    shares: tuple[PackShare, ...]
    segments: tuple[JobSegment, ...]
    #: ``int64[T]``; virtual tokens hold 0.
    tokens_T: torch.Tensor
    #: ``int64[T]``: restarts at 0 with each sequence.
    positions_T: torch.Tensor
    #: ``int32[S + 1]``: where sequences begin in the stream.
    starts: np.ndarray
    #: The same on the device.
    starts_S: torch.Tensor
    #: Tokens of the longest sequence.
    longest: int
    buckets: tuple[Bucket, ...]
    #: ``int64[M]``: stream positions whose next token is trained, and those tokens.
    predict_M: torch.Tensor
    targets_M: torch.Tensor
    #: ``int64[M]``: the sequence of each.
    sequence_M: torch.Tensor
    #: ``int32[T]``; ``None`` when nothing of the pack is random.
    dropout_keys_T: torch.Tensor | None = None
    #: ``int32[T]``; ``None`` when no job of the pack drops out.
    dropout_threshold_T: torch.Tensor | None = None
    #: ``float32[T]``: ``1 / (1 - p)``.
    dropout_scale_T: torch.Tensor | None = None
    #: ``float32[T]``: the noise on a token's embedding, times the root of the model's width;
    #: ``None`` when no job of the pack has any.
    noise_T: torch.Tensor | None = None
    #: Stream positions of virtual tokens per job.
    virtual: dict[str, torch.Tensor] = field(default_factory=dict)
    #: What attention sees beside the pack, where answers are written; ``None`` in training.
    key_values: KeyValues | None = None

    @property
    def tokens(self) -> int:
        return int(self.tokens_T.numel())


@dataclass(slots=True)
class _Stream:
    """A pack's tokens and what is known of each, sequence by sequence."""

    #: Whether dropout or noise is drawn for any token of the pack.
    draws: bool
    is_noisy: bool
    end: int = 0
    lengths: list[int] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    predict: list[np.ndarray] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)
    owners: list[np.ndarray] = field(default_factory=list)
    keys: list[np.ndarray] = field(default_factory=list)
    thresholds: list[np.ndarray] = field(default_factory=list)
    noise: list[np.ndarray] = field(default_factory=list)

    def add(self, share: PackShare, sequence: TokenSequence, *, row: int, part: int) -> None:
        """Append a sequence, its job's virtual tokens before it."""
        length = len(sequence) + share.virtual_tokens
        if share.virtual_tokens:
            self.tokens.append(np.zeros(share.virtual_tokens, dtype=np.int64))
        self.tokens.append(sequence.tokens)
        trained = np.flatnonzero(sequence.weights)
        self.predict.append(trained + (self.end + share.virtual_tokens - 1))
        self.targets.append(sequence.tokens[trained])
        self.owners.append(np.full(len(trained), len(self.lengths), dtype=np.int64))
        if self.is_noisy:
            loud = share.noise / math.sqrt(len(sequence))
            self.noise.append(np.zeros(share.virtual_tokens, dtype=np.float32))
            self.noise.append(np.full(len(sequence), loud, dtype=np.float32))
        if self.draws:
            key = dropout.hash_sequence(seed=share.seed, step=share.step, row=row, part=part)
            self.keys.append(dropout.hash_tokens(key, length))
            threshold = dropout.compute_drop_threshold(share.dropout)
            self.thresholds.append(np.full(length, threshold, dtype=np.int32))
        self.lengths.append(length)
        self.end += length

    def pad(self, padding: int, pad_token: int) -> None:
        """Append so many tokens of no job, as one more sequence."""
        if not padding:
            return
        self.tokens.append(np.full(padding, pad_token, dtype=np.int64))
        self.lengths.append(padding)
        if self.is_noisy:
            self.noise.append(np.zeros(padding, dtype=np.float32))
        if self.draws:
            self.keys.append(np.zeros(padding, dtype=np.int32))
            self.thresholds.append(np.zeros(padding, dtype=np.int32))
        self.end += padding


def build_pack(
    shares: Sequence_[PackShare], *, device: torch.device, pad_to: int = 1, pad_token: int = 0
) -> Pack:
    """Lay the shares one after the other.

    Parameters
    ----------
    shares : sequence of PackShare
        At most one per job, in the order of the adapters.
    pad_to : int
        The stream's length is rounded up to a multiple of this, so that shapes repeat.
        The padding is one more sequence, which no loss counts and no job owns.
    """
    drops = any(share.dropout > 0 for share in shares)
    is_noisy = any(share.noise > 0 for share in shares)
    stream = _Stream(draws=drops or is_noisy, is_noisy=is_noisy)
    segments: list[JobSegment] = []
    virtual: dict[str, torch.Tensor] = {}
    for share in shares:
        begin = stream.end
        virtual_at: list[np.ndarray] = []
        for offset, example in enumerate(share.examples):
            for part, sequence in enumerate(example.sequences):
                if share.virtual_tokens:
                    virtual_at.append(np.arange(stream.end, stream.end + share.virtual_tokens))
                stream.add(share, sequence, row=share.first_row + offset, part=part)
        segments.append(JobSegment(share.job_id, begin, stream.end, share.dropout))
        if virtual_at:
            virtual[share.job_id] = _put(np.concatenate(virtual_at), device)
    stream.pad(-stream.end % pad_to, pad_token)
    sizes = np.asarray(stream.lengths, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    positions = np.concatenate([np.arange(length) for length in stream.lengths])
    return Pack(
        shares=tuple(shares),
        segments=tuple(segments),
        tokens_T=_put(np.concatenate(stream.tokens), device),
        positions_T=_put(positions, device),
        starts=starts,
        buckets=_buckets(sizes, starts, device),
        predict_M=_put(np.concatenate(stream.predict), device),
        targets_M=_put(np.concatenate(stream.targets), device),
        sequence_M=_put(np.concatenate(stream.owners), device),
        dropout_keys_T=torch.from_numpy(np.concatenate(stream.keys)).to(device)
        if stream.keys
        else None,
        noise_T=torch.from_numpy(np.concatenate(stream.noise)).to(device) if stream.noise else None,
        dropout_threshold_T=(
            torch.from_numpy(np.concatenate(stream.thresholds)).to(device) if drops else None
        ),
        dropout_scale_T=_dropout_scale(segments, stream.end, device) if drops else None,
        starts_S=torch.from_numpy(starts).to(device),
        longest=int(sizes.max()),
        virtual=virtual,
    )


def cut_pack(pack: Pack, start: int, end: int) -> Pack:
    """What adapters need to know of a stretch of the stream; whole sequences it need not have."""
    segments = (
        replace(one, start=max(one.start, start) - start, end=min(one.end, end) - start)
        for one in pack.segments
        if one.start < end and one.end > start
    )
    own = slice(start, end)
    keys, thresholds = pack.dropout_keys_T, pack.dropout_threshold_T
    scales = pack.dropout_scale_T
    return replace(
        pack,
        segments=tuple(segments),
        tokens_T=pack.tokens_T[own],
        dropout_keys_T=None if keys is None else keys[own],
        dropout_threshold_T=None if thresholds is None else thresholds[own],
        dropout_scale_T=None if scales is None else scales[own],
    )


def move(value: Any, device: torch.device) -> Any:
    """What a block is called with, on a device: tensors, packs, and what holds them."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Pack | Bucket):
        moved = {one.name: move(getattr(value, one.name), device) for one in fields(value)}
        return replace(value, **moved)
    if isinstance(value, dict):
        return {key: move(one, device) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(move(one, device) for one in value)
    return value


def _dropout_scale(segments: list[JobSegment], tokens: int, device: torch.device) -> torch.Tensor:
    scale_T = np.ones(tokens, dtype=np.float32)
    for segment in segments:
        scale_T[segment.start : segment.end] = 1.0 / (1.0 - segment.dropout)
    return torch.from_numpy(scale_T).to(device)


#: A bucket's rows may be padded by at most this share of its longest.
_BUCKET_WASTE = 0.25


def _buckets(sizes: np.ndarray, starts: np.ndarray, device: torch.device) -> tuple[Bucket, ...]:
    """Sequences grouped by length, so that padding stays small and calls stay few."""
    if (sizes == sizes[0]).all():
        return (Bucket(None, len(sizes), int(sizes[0]), None, None, None),)
    groups = group_by_length(sizes)
    return tuple(build_bucket(group, sizes, starts, device) for group in groups)


def group_by_length(sizes: np.ndarray) -> list[list[int]]:
    """Which sequences share a bucket, in the order of the stream."""
    groups: list[list[int]] = []
    for index in np.argsort(-sizes, kind="stable"):
        if groups and sizes[index] >= (1 - _BUCKET_WASTE) * sizes[groups[-1][0]]:
            groups[-1].append(int(index))
        else:
            groups.append([int(index)])
    return [sorted(group) for group in groups]


def build_bucket(
    group: list[int], sizes: np.ndarray, starts: np.ndarray, device: torch.device
) -> Bucket:
    """The padded rows of some sequences of a stream."""
    length = int(sizes[group].max())
    columns = np.arange(length)
    real = columns[None, :] < sizes[group][:, None]
    gather = np.where(real, starts[group][:, None] + columns[None, :], starts[group][:, None])
    return Bucket(
        gather=_put(gather.reshape(-1), device),
        sequences=len(group),
        length=length,
        real=_put(np.flatnonzero(real.reshape(-1)), device),
        stream=_put(gather[real], device),
        key_mask=None if real.all() else torch.from_numpy(real).to(device),
    )


def _put(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(
        device, non_blocking=True
    )
