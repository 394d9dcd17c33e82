"""What training takes of a device's memory, counted alike by the market and by its nodes.

The engine keeps one base model, packs the sequences of all jobs into one pass at a time, and makes
logits chunk by chunk. So the memory of activations is the node's and does not depend on anybody's
batch::

    node:  base model + one pack
    job:   adapter, gradient, two moments + its share of what the pass keeps for adapters

A pack is largest either while a chunk of logits is there or later, while a block runs backward: the
logits are gone by then.

This is the constraint ``r_b + sum r_i <= C_km``, (4g) of the auction's paper. ``part_memory`` says
how much of a node is sold, in pieces of ``count_sold_job_bytes``, and how the node admits. Sizes of
activations stand in ``pass_bytes``, and those of a job in ``job_bytes``.
``python -m workers.bench memory`` holds the sums against what a process really takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workers.protocol.job_bytes import (
    JobNeed,
    add_dropped,
    count_crowded_bytes,
    count_inner_bytes,
    count_lengthened,
    count_state_bytes,
    find_adapted,
    has_rank,
)
from workers.protocol.job_settings import LORA_RANGES, SOFT_PROMPT_RANGES
from workers.protocol.job_spec import DataFormat
from workers.protocol.model_shape import ModelShape
from workers.protocol.pass_bytes import (
    STOCK_PADDING,
    DeviceProfile,
    PassBytes,
    add_inner,
    count_host_bytes,
    describe_device,
    size_pass,
)

GB = 1e9
#: Share of a device's memory the plan uses; the rest is for kernels and fragmentation.
USABLE_SHARE = {"cuda": 0.92, "cpu": 0.75}
#: Share of what a base leaves that adapters of answers may take together, of what packs have.
ANSWER_ADAPTERS_SHARE = 0.1
#: What a device's process has besides: workspaces of kernels, tables of a pack.
BESIDES_BYTES = 56e6
RANK_MAX = int(LORA_RANGES["rank"].high)
_VIRTUAL_TOKENS_MAX = int(SOFT_PROMPT_RANGES["virtual_tokens"].high)


@dataclass(frozen=True, slots=True)
class PackSizing:
    """How the jobs on a base run within the limit."""

    token_budget: int
    #: Recompute blocks in the backward pass.
    recompute: bool
    #: Their inputs wait in the host's memory, and their MLPs see tokens in tiles: for rows that fit
    #: in no other way.
    spills: bool = False


def size_any_pass(
    shape: ModelShape, profile: DeviceProfile, *, longest: int, spills: bool
) -> PassBytes:
    """A recomputed pass, whatever jobs come.

    The inner values that a CPU's pack keeps are of their largest rank, and of dropout a pack keeps
    as much for one job as for many.
    """
    sizes = size_pass(shape, profile, rank=RANK_MAX, recompute=True, longest=longest, spills=spills)
    return add_dropped(
        sizes, shape, profile, shape.list_projections(), recompute=True, spills=spills
    )


def can_spill(shape: ModelShape, profile: DeviceProfile, *, tokens: int, host_gb: float) -> bool:
    """Whether a pack of so many tokens may be kept in the host's memory between its passes."""
    is_apart = profile.device != "cpu" and not shape.stock and not shape.encoder
    return is_apart and count_host_bytes(shape, profile, tokens=tokens) <= GB * host_gb


def find_longest_example(shape: ModelShape, *, sequence_length: int) -> int:
    """Tokens of the longest example of rows so long: of a preference, both sequences together.

    A soft prompt's tokens count towards the length, except that 16 are always left for the row.
    """
    if shape.encoder:
        return sequence_length
    return max(sequence_length, 2 * (_VIRTUAL_TOKENS_MAX + 16))


def find_row_limit(sequence_length: int, data_format: str) -> int:
    """Tokens that a row may have where examples have so many: a preference is two sequences."""
    return sequence_length // (2 if data_format == DataFormat.PREFERENCE else 1)


def count_sold_job_bytes(
    shape: ModelShape, need: JobNeed, *, dtype: str, sequence_length: int
) -> float:
    """Bound the bytes of one job over all nodes of a zone that it may run on.

    Of a GPU with a whole pack, since a CPU's job has its state alone. Of a group of devices, as
    many times the state as the device that holds most of it needs to have sold.
    """
    profile = describe_device("cuda", dtype)
    longest = find_longest_example(shape, sequence_length=sequence_length)
    pack = PackSizing(max(profile.pack_tokens, longest), recompute=True)
    alone = count_job_bytes(shape, profile, need, pack=pack)
    return alone + count_crowded_bytes(shape, profile, need)


def count_job_bytes(
    shape: ModelShape, profile: DeviceProfile, need: JobNeed, *, pack: PackSizing
) -> float:
    """Bytes of one job beside the base and a pack.

    On GPUs every adapter meets every token of a pack, so that a job adds its rank's inner values
    for the whole of it; on CPUs it meets its own rows only, which a pack of any job has.

    Raises
    ------
    SettingError
        As ``find_adapted``.
    """
    inner = count_inner_bytes(shape, profile, need, recompute=pack.recompute)
    return count_state_bytes(shape, profile, need) + pack.token_budget * inner


def pack_bytes(
    shape: ModelShape,
    profile: DeviceProfile,
    pack: PackSizing,
    *,
    needs: Iterable[JobNeed],
    longest_tokens: int | None = None,
    padding: float = STOCK_PADDING,
) -> float:
    """Bytes of one pack at its largest, with its logits and what these jobs add to its tokens.

    Parameters
    ----------
    longest_tokens
        Its longest row, where that is known to be shorter than the pack.
    padding
        As in ``size_pass``.
    """
    sizes = size_shared_pass(
        shape,
        profile,
        tuple(needs),
        way=pack,
        longest=longest_tokens or pack.token_budget,
        padding=padding,
    )
    return sizes.count_bytes(pack.token_budget)


def sum_total_gb(
    shape: ModelShape,
    profile: DeviceProfile,
    *,
    base_gb: float,
    pack: PackSizing,
    needs: Iterable[JobNeed],
    longest_tokens: int | None = None,
    padding: float = STOCK_PADDING,
) -> float:
    """The peak of a node with these jobs; rows as in ``pack_bytes``."""
    listed = tuple(needs)
    states = sum(count_state_bytes(shape, profile, need) for need in listed)
    own = BESIDES_BYTES + pack_bytes(
        shape, profile, pack, needs=listed, longest_tokens=longest_tokens, padding=padding
    )
    return base_gb + (own + states) / GB


def size_shared_pass(
    shape: ModelShape,
    profile: DeviceProfile,
    needs: Sequence[JobNeed],
    *,
    way: PackSizing,
    longest: int,
    padding: float = STOCK_PADDING,
) -> PassBytes:
    """With the jobs' inner values."""
    recompute, spills = way.recompute, way.spills
    largest = max((need.adapter.rank for need in needs if has_rank(need)), default=0)
    sizes = size_pass(
        shape,
        profile,
        rank=largest,
        recompute=recompute,
        longest=longest,
        spills=spills,
        padding=padding,
    )
    inner = sum(count_inner_bytes(shape, profile, need, recompute=recompute) for need in needs)
    if profile.device == "cpu" or shape.stock:
        # a token has one job
        most = max((count_lengthened(shape, need.adapter) for need in needs), default=0)
        inner += most * profile.activation_bytes / (shape.layers if recompute else 1)
    dropping = {
        part
        for need in needs
        if need.adapter.dropout and has_rank(need)
        for part in find_adapted(shape, need.adapter.target_modules)
    }
    sizes = add_inner(sizes, inner, recompute=recompute)
    return add_dropped(
        sizes, shape, profile, dropping, recompute=recompute, spills=spills, padding=padding
    )
