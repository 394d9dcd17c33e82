"""What a group of devices holds of a base and its jobs: as much as its tightest part does.

A part has some of the base's blocks, the adapters beside them, and what packs in flight keep there.
The first also has embeddings and soft prompts, the last the output layer. Blocks are recomputed: a
part keeps what goes into each of its own, of every pack that it may hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    NodeSizing,
    PackSizing,
    size_any_pass,
    size_shared_pass,
)
from workers.protocol.model_shape import BasePart, ModelShape
from workers.protocol.pass_bytes import DeviceProfile, PassBytes


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
        sized = size_group(
            shape,
            profile,
            parts=share_base(shape, profile, cuts=cuts, four_bit=four_bit),
            limits_gb=[limit_gb] * parts,
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


def size_group(
    shape: ModelShape,
    profile: DeviceProfile,
    *,
    parts: Sequence[BasePart],
    limits_gb: Sequence[float],
    longest_tokens: int,
) -> NodeSizing | None:
    """As ``size_node``, for the tightest part.

    A job of ``count_sold_job_bytes`` takes of a part at most the share that an adapter on all
    projections has there, and inner values for the group's pack instead of a whole one.
    """
    sizes = size_any_pass(shape, profile, longest=longest_tokens, spills=False)
    most = max(profile.pack_tokens, longest_tokens)
    # one matrix and its gradient are there twice while it grows
    widest = max(max(part.inputs, part.outputs) for part in shape.parts)
    besides = BESIDES_BYTES + 2 * FLOAT_BYTES * RANK_MAX * widest
    rooms = [
        GB * (limit - part.base_gb) - besides for part, limit in zip(parts, limits_gb, strict=True)
    ]
    passes = [divide_pass(sizes, shape, profile, parts, part) for part in range(len(parts))]
    fitting = min(one.count_tokens(room / 2) for one, room in zip(passes, rooms, strict=True))
    tokens = max(longest_tokens, min(count_pack_tokens(shape, profile, len(parts)), fitting))
    usual = JobNeed(AdapterSpec())
    shares = [share_state(shape, usual, parts, part) for part in range(len(parts))]
    shares[0] = max(shares[0], FIRST_PART_SHARE)
    jobs_gb = min(
        (room - one.count_bytes(tokens)) / GB / max(share, tokens / most)
        for share, one, room in zip(shares, passes, rooms, strict=True)
    )
    return NodeSizing(PackSizing(tokens, recompute=True), jobs_gb) if jobs_gb > 0 else None


def fit_group_pack(
    shape: ModelShape,
    profile: DeviceProfile,
    *,
    parts: Sequence[BasePart],
    rooms_gb: Sequence[float],
    needs: Sequence[JobNeed],
    longest_tokens: int,
    unforeseen_gb: float = 0.0,
) -> PackSizing | None:
    """As ``fit_pack``, part by part.

    Parameters
    ----------
    rooms_gb
        What each part's share of the base leaves of its limit.
    """
    way = PackSizing(longest_tokens, recompute=True)
    sizes = size_shared_pass(shape, profile, needs, way=way, longest=longest_tokens)
    most = max(count_pack_tokens(shape, profile, len(parts)), longest_tokens)
    tokens = most
    for part, room in enumerate(rooms_gb):
        states = sum(
            count_state_bytes(shape, profile, need) * share_state(shape, need, parts, part)
            for need in needs
        )
        free = GB * room - BESIDES_BYTES - states
        own = divide_pass(sizes, shape, profile, parts, part)
        if own.count_bytes(longest_tokens) > free:
            return None
        tokens = min(tokens, own.count_tokens(free - GB * unforeseen_gb / len(parts)))
    return replace(way, token_budget=max(tokens, longest_tokens))


def share_state(shape: ModelShape, need: JobNeed, parts: Sequence[BasePart], part: int) -> float:
    """Which share of what a job trains is on a part."""
    if not has_rank(need):
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
