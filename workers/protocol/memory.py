"""What training takes of a device's memory, counted alike by the market and by its nodes.

The engine keeps one base model, packs the sequences of all jobs into one pass at a time, and makes
logits chunk by chunk. So the memory of activations is the node's and does not depend on anybody's
batch::

    node:  base model + one pack
    job:   adapter, gradient, two moments + its share of what the pass keeps for adapters

A pack is largest either while a chunk of logits is there or later, while a block runs backward: the
logits are gone by then.

This is the constraint ``r_b + sum r_i <= C_km``, (4g) of the auction's paper. The market sells
``size_node(...).jobs_gb`` of a node in pieces of ``count_sold_job_bytes``; the node admits by
``fit_pack``. What the market sells of one node, that node therefore admits: it counts the same
terms for its own device, a pack need not be larger than the longest row that is there, and the
market sets aside one for the longest that it sells.

Sizes of activations stand in ``pass_bytes``.
What an adapter takes is counted by the rule by which the engine allocates (``adapter_layout``).
``python -m workers.bench memory`` holds the sums against what a process really takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from workers.protocol.adapter_layout import (
    FLOAT_BYTES,
    count_matrix_bytes,
    count_stack_rows,
    count_tensor_bytes,
    count_trained_bytes,
)
from workers.protocol.job_settings import (
    ALL_LINEAR,
    LORA_RANGES,
    SOFT_PROMPT_RANGES,
    match_modules,
)
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.model_shape import ModelShape, Projection
from workers.protocol.pass_bytes import (
    STOCK_PADDING,
    DeviceProfile,
    PassBytes,
    add_inner,
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
#: A kilobyte: figures that travel are rounded, and sums in another order differ.
_ROUNDING_GB = 1e-6
_RANK_MAX = int(LORA_RANGES["rank"].high)
_VIRTUAL_TOKENS_MAX = int(SOFT_PROMPT_RANGES["virtual_tokens"].high)


@dataclass(frozen=True, slots=True)
class JobNeed:
    """What a job's memory depends on."""

    adapter: AdapterSpec
    #: Of the classification head that trains with it on an encoder.
    labels: int = 0


@dataclass(frozen=True, slots=True)
class PackSizing:
    """How the jobs on a base run within the limit."""

    token_budget: int
    #: Recompute blocks in the backward pass.
    recompute: bool


@dataclass(frozen=True, slots=True)
class NodeSizing:
    """How a node's memory is shared out before any job is on it."""

    pack: PackSizing
    #: What base model, one pack with its logits and what a process has besides leave for jobs.
    jobs_gb: float


def size_node(
    shape: ModelShape,
    profile: DeviceProfile,
    *,
    base_gb: float,
    limit_gb: float,
    longest_tokens: int,
) -> NodeSizing | None:
    """Set a recomputed pack aside, and leave the rest to jobs; ``None`` where that is nothing.

    The pack has the size that suits the device's kind. On a tight device it has at most half of
    what the base leaves, and never less than the longest row. While jobs leave room, the engine
    packs without recomputing instead: that takes no more than what is free.
    """
    rest = limit_gb - base_gb - BESIDES_BYTES / GB
    # whatever jobs come: the inner values that a CPU's pack keeps are of their largest rank, and
    # of dropout a pack keeps as much for one job as for many
    sizes = size_pass(shape, profile, rank=_RANK_MAX, recompute=True, longest=longest_tokens)
    dropped = _dropped_bytes(shape, profile, shape.list_projections(), recompute=True)
    sizes = add_inner(sizes, dropped, recompute=True)
    tokens = max(longest_tokens, min(profile.pack_tokens, sizes.count_tokens(GB * rest / 2)))
    jobs_gb = rest - sizes.count_bytes(tokens) / GB
    if jobs_gb <= 0:
        return None
    return NodeSizing(PackSizing(tokens, recompute=True), jobs_gb)


def fit_pack(
    shape: ModelShape,
    profile: DeviceProfile,
    *,
    room_gb: float,
    needs: Sequence[JobNeed],
    longest_tokens: int,
    unforeseen_gb: float = 0.0,
) -> PackSizing | None:
    """The pack with which these jobs share a node; ``None`` where they do not fit.

    Blocks are recomputed only where the longest row does not fit otherwise: that costs a third
    more arithmetic, so rather a smaller pack.

    Parameters
    ----------
    room_gb
        What the base model leaves of the node's limit.
    longest_tokens
        The longest example of any job; a pack must hold at least it.
    unforeseen_gb
        By how much packs have taken more on this node than is counted here. It makes packs smaller
        and refuses no job: those are sold by what is counted.
    """
    states = sum(count_state_bytes(shape, profile, need) for need in needs)
    free = GB * (room_gb + _ROUNDING_GB) - BESIDES_BYTES - states
    most = max(profile.pack_tokens, longest_tokens)
    for recompute in (False, True):
        sizes = _size_shared_pass(
            shape, profile, needs, recompute=recompute, longest=longest_tokens
        )
        tokens = sizes.count_tokens(free - GB * unforeseen_gb)
        if tokens >= longest_tokens:
            return PackSizing(min(tokens, most), recompute)
        if recompute and free >= sizes.count_bytes(longest_tokens):
            return PackSizing(longest_tokens, recompute)
    return None


def find_longest_example(shape: ModelShape, *, sequence_length: int) -> int:
    """Tokens of the longest example of rows so long: a preference is two sequences.

    A soft prompt's tokens count towards the length, except that 16 are always left for the row.
    """
    if shape.encoder:
        return sequence_length
    return 2 * max(sequence_length, _VIRTUAL_TOKENS_MAX + 16)


def count_sold_job_bytes(
    shape: ModelShape, need: JobNeed, *, dtype: str, sequence_length: int
) -> float:
    """Bound the bytes of one job over all nodes of a zone that it may run on.

    Of a GPU with a whole pack, since a CPU's job has its state alone.
    """
    profile = describe_device("cuda", dtype)
    longest = find_longest_example(shape, sequence_length=sequence_length)
    pack = PackSizing(max(profile.pack_tokens, longest), recompute=True)
    return count_job_bytes(shape, profile, need, pack=pack)


@lru_cache(maxsize=256)
def find_adapted(
    shape: ModelShape, target_modules: tuple[str, ...] | None
) -> tuple[Projection, ...]:
    """The base model's projections that an adapter sits on.

    Raises
    ------
    SettingError
        When a target is no projection of the model.
    """
    projections = {part.name: part for part in shape.list_projections()}
    targets = target_modules or (ALL_LINEAR,)
    return tuple(projections[name] for name in match_modules(targets, projections))


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
    inner = _inner_bytes(shape, profile, need, recompute=pack.recompute)
    return count_state_bytes(shape, profile, need) + pack.token_budget * inner


@lru_cache(maxsize=1024)
def count_state_bytes(shape: ModelShape, profile: DeviceProfile, need: JobNeed) -> float:
    """Bytes of what a job trains: values, gradients and moments, and its values in 16 bits."""
    device, adapter = profile.device, need.adapter
    head = shape.list_head_shapes(labels=need.labels).values() if shape.encoder else ()
    taken = float(sum(count_trained_bytes(prod(size), device=device) for size in head))
    if adapter.kind is AdapterKind.SOFT_PROMPT:
        values = adapter.virtual_tokens * shape.hidden_size
        return taken + count_trained_bytes(values, device=device)
    parts = find_adapted(shape, adapter.target_modules)
    widths = [width for part in parts for width in (part.inputs, part.outputs)]
    taken += sum(count_matrix_bytes(adapter.rank, width, device=device) for width in widths)
    rows = count_stack_rows(adapter.rank, device=device)
    # one matrix and its gradient are there twice while it grows or shrinks
    taken += 2 * FLOAT_BYTES * rows * max(widths)
    if device == "cuda" and profile.activation_bytes < FLOAT_BYTES:
        taken += profile.activation_bytes * rows * sum(widths)
    if adapter.dora:
        # learnt lengths, and the squares of those of the frozen weights
        taken += sum(
            count_trained_bytes(part.outputs, device=device)
            + count_tensor_bytes(part.outputs, device=device)
            for part in parts
        )
    return taken


def count_answer_adapter_bytes(
    shape: ModelShape, profile: DeviceProfile, adapter: AdapterSpec
) -> float:
    """Bytes of an adapter that only answers questions: its values, as wide as activations."""
    device = profile.device
    if adapter.kind is AdapterKind.SOFT_PROMPT:
        return count_tensor_bytes(adapter.virtual_tokens * shape.hidden_size, device=device)
    rows = count_stack_rows(adapter.rank, device=device)
    taken = 0
    for part in find_adapted(shape, adapter.target_modules):
        for width in (part.inputs, part.outputs):
            taken += count_tensor_bytes(rows * width, device=device, width=profile.activation_bytes)
        if adapter.dora:
            # learnt lengths, those of the summed weights, and squares of the frozen ones
            taken += 3 * count_tensor_bytes(part.outputs, device=device)
    return taken


def _inner_bytes(
    shape: ModelShape, profile: DeviceProfile, need: JobNeed, *, recompute: bool
) -> float:
    """Bytes that each token of a GPU's pack has more with this job on it."""
    adapter = need.adapter
    # a base's own code has one job a pass, on its own rows
    if profile.device == "cpu" or shape.stock or adapter.kind is AdapterKind.SOFT_PROMPT:
        return 0.0
    # the inner values, scaled, and without the foreign ones; whose they are takes less than these
    parts = find_adapted(shape, adapter.target_modules)
    rows = count_stack_rows(adapter.rank, device=profile.device)
    values = 3 * rows * len(parts) + _count_lengthened(shape, adapter)
    return values * profile.activation_bytes / (shape.layers if recompute else 1)


def _dropped_bytes(
    shape: ModelShape,
    profile: DeviceProfile,
    parts: Iterable[Projection],
    *,
    recompute: bool,
    padding: float = STOCK_PADDING,
) -> float:
    """Bytes that each token of a pack has more where adapters of these projections drop out.

    Which inputs stay, and on GPUs those inputs. Rows of other jobs have them as well.
    """
    width = 1 if profile.device == "cpu" or shape.stock else 1 + profile.activation_bytes
    taken = width * sum(part.inputs for part in parts) / (shape.layers if recompute else 1)
    return taken * (padding if shape.stock else 1)


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
    sizes = _size_shared_pass(
        shape,
        profile,
        tuple(needs),
        recompute=pack.recompute,
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


def _size_shared_pass(
    shape: ModelShape,
    profile: DeviceProfile,
    needs: Sequence[JobNeed],
    *,
    recompute: bool,
    longest: int,
    padding: float = STOCK_PADDING,
) -> PassBytes:
    """With the jobs' inner values."""
    largest = max((need.adapter.rank for need in needs if _has_rank(need)), default=0)
    sizes = size_pass(
        shape, profile, rank=largest, recompute=recompute, longest=longest, padding=padding
    )
    inner = sum(_inner_bytes(shape, profile, need, recompute=recompute) for need in needs)
    if profile.device == "cpu" or shape.stock:
        # a token has one job
        most = max((_count_lengthened(shape, need.adapter) for need in needs), default=0)
        inner += most * profile.activation_bytes / (shape.layers if recompute else 1)
    dropping = {
        part
        for need in needs
        if need.adapter.dropout and _has_rank(need)
        for part in find_adapted(shape, need.adapter.target_modules)
    }
    inner += _dropped_bytes(shape, profile, dropping, recompute=recompute, padding=padding)
    return add_inner(sizes, inner, recompute=recompute)


def _count_lengthened(shape: ModelShape, adapter: AdapterSpec) -> int:
    """Values of a token that DoRA keeps: each output before it is given its length."""
    if not adapter.dora:
        return 0
    return sum(part.outputs for part in find_adapted(shape, adapter.target_modules))


def _has_rank(need: JobNeed) -> bool:
    return need.adapter.kind is not AdapterKind.SOFT_PROMPT
