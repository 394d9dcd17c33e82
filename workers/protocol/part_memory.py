"""What a node holds of a base and its jobs; of a group of devices, as much as its tightest part.

A part has some of the base's blocks, the adapters beside them, and what packs in flight keep there.
The first also has embeddings and soft prompts, the last the output layer. Blocks are recomputed: a
part keeps what goes into each of its own, of every pack that it may hold. A single device has one
part.

What the market sells of a node (``size_node``), that node admits (``fit_pack``): it counts the same
terms for its own devices, a pack need not be larger than the longest row that is there, and the
market sets aside one for the longest that it sells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from workers.protocol.adapter_layout import FLOAT_BYTES
from workers.protocol.job_bytes import (
    FIRST_PART_SHARE,
    JobNeed,
    count_block_widths,
    count_state_bytes,
    has_rank,
)
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.memory import (
    BESIDES_BYTES,
    GB,
    RANK_MAX,
    PackSizing,
    can_spill,
    size_any_pass,
    size_shared_pass,
)
from workers.protocol.model_shape import BasePart, ModelShape
from workers.protocol.pass_bytes import DeviceProfile, PassBytes

#: A kilobyte: figures that travel are rounded, and sums in another order differ.
_ROUNDING_GB = 1e-6


def count_held_packs(parts: int, part: int) -> int:
    """Packs of which a part may hold something for their backward passes: in all, one a part."""
    return parts - part


def choose_cuts(
    shape: ModelShape,
    profile: DeviceProfile,
    *,
    parts: int,
    limit_gb: float,
    four_bit: bool,
) -> tuple[int, ...]:
    """How many blocks each part has: for most jobs first, then for equal work.

    Devices are alike, so only the first, with embeddings and most packs, and the last, with the
    output layer, have fewer blocks.

    Parameters
    ----------
    limit_gb
        What each device may hold.
    """
    best: tuple[float, float] | None = None
    chosen: tuple[int, ...] = ()
    head = count_head_blocks(shape)
    even = -(-shape.layers // parts)
    ends = range(max(1, even // 2), even + 2)
    for first, last in product(ends, ends):
        left = shape.layers - first - last
        if left < parts - 2 or (parts == 2 and left):
            continue
        others, more = divmod(left, max(1, parts - 2))
        middle = (others + (part >= parts - 2 - more) for part in range(parts - 2))
        cuts = (first, *middle, last)
        sized = size_node(
            shape,
            profile,
            parts=share_base(shape, profile, cuts=cuts, four_bit=four_bit),
            limit_gb=limit_gb,
            longest_tokens=count_pack_tokens(shape, profile, parts),
        )
        slowest = max(*cuts[:-1], last + head)
        # a job more or less is what is worth a slower cut
        jobs = 0.0 if sized is None else sized.jobs_gb // _WORTH_GB
        if best is None or (jobs, -slowest) > best:
            best, chosen = (jobs, -slowest), cuts
    return chosen


#: Jobs are counted in steps of so many GB.
_WORTH_GB = 1.0


def count_head_blocks(shape: ModelShape) -> float:
    """How many blocks an output layer counts as."""
    if shape.encoder:
        return 0.0
    block = sum(part.inputs * part.outputs * len(part.blocks) for part in shape.parts)
    return shape.vocab_size * shape.hidden_size * shape.layers / max(1, block)


def share_base(
    shape: ModelShape, profile: DeviceProfile, *, cuts: Sequence[int], four_bit: bool
) -> tuple[BasePart, ...]:
    """The weights of each part, before any is loaded."""
    width = profile.activation_bytes
    block = sum(part.inputs * part.outputs * len(part.blocks) for part in shape.parts)
    block *= (_FOUR_BIT_BYTES if four_bit else width) / shape.layers
    # experts are no projections, but lie in blocks
    table = shape.vocab_size * shape.hidden_size
    block += max(0, shape.other_weights - 2 * table) * width / shape.layers
    # embeddings are at one end, the output layer at the other
    tables = [(part == 0) + (part == len(cuts) - 1) for part in range(len(cuts))]
    return tuple(
        BasePart(blocks, (blocks * block + count * table * width) / GB)
        for blocks, count in zip(cuts, tables, strict=True)
    )


#: Four bits, and a 32-bit scale for each 64 weights.
_FOUR_BIT_BYTES = 0.5625


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
    parts: Sequence[BasePart],
    limit_gb: float,
    longest_tokens: int,
    host_gb: float = 0.0,
) -> NodeSizing | None:
    """Set a recomputed pack aside, and leave the rest to jobs; ``None`` where that is nothing.

    One for rows that are longer than any usual pack spills, where ``host_gb`` of the host's memory
    are enough for it and the device is no group's.

    The pack has the size that suits the device's kind. On a tight device it has at most half of
    what the base leaves, and never less than the longest row. While jobs leave room, the engine
    packs without recomputing instead: that takes no more than what is free.

    A job of ``count_sold_job_bytes`` takes of a group's part at most the share that an adapter on
    all projections has there, and inner values for the group's pack instead of a whole one.

    Parameters
    ----------
    parts
        What of the base model each device has.
    limit_gb
        What each of them may hold.
    """
    is_group = len(parts) > 1
    spills = (
        not is_group
        and longest_tokens > profile.pack_tokens
        and can_spill(shape, profile, tokens=longest_tokens, host_gb=host_gb)
    )
    sizes = size_any_pass(shape, profile, longest=longest_tokens, spills=spills)
    # one matrix and its gradient are there twice while it grows; a whole job is sold with it
    widest = max(max(part.inputs, part.outputs) for part in shape.parts) if is_group else 0
    besides = BESIDES_BYTES + 2 * FLOAT_BYTES * RANK_MAX * widest
    rooms = [GB * (limit_gb - part.base_gb) - besides for part in parts]
    passes = [divide_pass(sizes, shape, profile, parts, part) for part in range(len(parts))]
    fitting = min(one.count_tokens(room / 2) for one, room in zip(passes, rooms, strict=True))
    tokens = max(longest_tokens, min(count_pack_tokens(shape, profile, len(parts)), fitting))
    usual = JobNeed(AdapterSpec())
    shares = [share_state(shape, usual, parts, part) for part in range(len(parts))]
    shares[0] = max(shares[0], FIRST_PART_SHARE)
    most = max(profile.pack_tokens, longest_tokens)
    jobs_gb = min(
        (room - one.count_bytes(tokens)) / GB / max(share, tokens / most)
        for share, one, room in zip(shares, passes, rooms, strict=True)
    )
    pack = PackSizing(tokens, recompute=True, spills=spills)
    return NodeSizing(pack, jobs_gb) if jobs_gb > 0 else None


def fit_pack(
    shape: ModelShape,
    profile: DeviceProfile,
    *,
    parts: Sequence[BasePart],
    limit_gb: float,
    needs: Sequence[JobNeed],
    longest_tokens: int,
    unforeseen_gb: float = 0.0,
    host_gb: float = 0.0,
) -> PackSizing | None:
    """The pack with which these jobs share a node; ``None`` where they do not fit.

    Blocks are recomputed only where the longest row does not fit otherwise: that costs a third
    more arithmetic, so rather a smaller pack. A pack spills where that is not enough. Blocks of a
    group are always recomputed.

    Parameters
    ----------
    parts, limit_gb
        As ``size_node``.
    longest_tokens
        The longest example of any job; a pack must hold at least it.
    unforeseen_gb
        By how much packs have taken more on this node than is counted here. It makes packs smaller
        and refuses no job: those are sold by what is counted.
    """
    ways = [PackSizing(longest_tokens, recompute) for recompute in (False, True)]
    if len(parts) > 1:
        ways = ways[1:]
    elif can_spill(shape, profile, tokens=longest_tokens, host_gb=host_gb):
        ways.append(PackSizing(longest_tokens, recompute=True, spills=True))
    free = [
        GB * (limit_gb + _ROUNDING_GB - one.base_gb)
        - BESIDES_BYTES
        - sum(
            count_state_bytes(shape, profile, need) * share_state(shape, need, parts, part)
            for need in needs
        )
        for part, one in enumerate(parts)
    ]
    unforeseen = GB * unforeseen_gb / len(parts)
    most = max(count_pack_tokens(shape, profile, len(parts)), longest_tokens)
    for way in ways:
        sizes = size_shared_pass(shape, profile, needs, way=way, longest=longest_tokens)
        own = [divide_pass(sizes, shape, profile, parts, part) for part in range(len(parts))]
        tokens = min(
            one.count_tokens(room - unforeseen) for one, room in zip(own, free, strict=True)
        )
        if tokens >= longest_tokens and not way.spills:
            return replace(way, token_budget=min(tokens, most))
        fits = all(
            one.count_bytes(longest_tokens) <= room for one, room in zip(own, free, strict=True)
        )
        if way.recompute and fits:
            return way
    return None


def share_state(shape: ModelShape, need: JobNeed, parts: Sequence[BasePart], part: int) -> float:
    """Which share of what a job trains is on a part."""
    if len(parts) == 1 or not has_rank(need):
        return float(part == 0)
    start = sum(one.blocks for one in parts[:part])
    widths = count_block_widths(shape, need.adapter.target_modules)
    return sum(widths[start : start + parts[part].blocks]) / sum(widths)


def divide_pass(
    sizes: PassBytes,
    shape: ModelShape,
    profile: DeviceProfile,
    parts: Sequence[BasePart],
    part: int,
) -> PassBytes:
    """What of a recomputed pass is on a part, with the other packs that it holds."""
    if len(parts) == 1:
        return sizes
    share = parts[part].blocks / shape.layers
    if shape.stock:
        return replace(sizes, kept=sizes.kept * share, head=sizes.head * (part == 0))
    is_last = part == len(parts) - 1
    held = count_held_packs(len(parts), part)
    # what comes out, and its gradient
    edge = 2 * shape.hidden_size * profile.activation_bytes
    return replace(sizes, kept=held * (sizes.kept * share + edge), head=sizes.head * is_last)


def count_pack_tokens(shape: ModelShape, profile: DeviceProfile, parts: int) -> int:
    """Of a usual pack: one device's, divided among those in flight."""
    return profile.pack_tokens if shape.stock else profile.pack_tokens // parts
