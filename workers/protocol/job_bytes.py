"""Bytes of one job beside the base and a pack: what it trains, and what it adds to a pack's tokens.

What an adapter takes is counted by the rule by which the engine allocates (``adapter_layout``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from workers.protocol.adapter_layout import (
    FLOAT_BYTES,
    count_matrix_bytes,
    count_stack_rows,
    count_tensor_bytes,
    count_trained_bytes,
)
from workers.protocol.job_settings import ALL_LINEAR, SettingError, match_modules
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.model_shape import ModelShape, Projection
from workers.protocol.pass_bytes import (
    STOCK_PADDING,
    TILE_TOKENS,
    DeviceProfile,
    PassBytes,
    add_inner,
)


@dataclass(frozen=True, slots=True)
class JobNeed:
    """What a job's memory depends on."""

    adapter: AdapterSpec
    #: Of the classification head that trains with it on an encoder.
    labels: int = 0


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
    experts = {part.name: part for part in shape.list_experts()}
    found = match_modules(target_modules or (ALL_LINEAR,), projections, experts)
    return tuple((projections | experts)[name] for name in found)


def check_targets(shape: ModelShape, adapter: AdapterSpec) -> tuple[Projection, ...]:
    """The projections that an adapter sits on, if it may sit there.

    Raises
    ------
    SettingError
        As ``find_adapted``; or the adapter sits on experts with what PEFT does not have there.
    """
    found = find_adapted(shape, adapter.target_modules)
    if any(part.experts > 1 for part in found):
        for name, value in (("dora", "false"), ("dropout", "0")):
            if getattr(adapter, name):
                raise SettingError(
                    f"adapter.{name}",
                    f"adapter.target_modules names experts, beside which PEFT has no {name}; give "
                    f"adapter.{name} {value}",
                )
    return found


@lru_cache(maxsize=256)
def count_block_widths(
    shape: ModelShape, target_modules: tuple[str, ...] | None
) -> tuple[int, ...]:
    """What goes into and comes out of an adapter's projections, block by block."""
    adapted = {part.name for part in find_adapted(shape, target_modules)}
    widths = [0] * shape.layers
    for part in (*shape.parts, *shape.experts):
        for number in part.blocks:
            if f"{shape.block.format(number)}.{part.name}" in adapted:
                widths[number] += part.experts * (part.inputs + part.outputs)
    return tuple(widths)


#: Of what a group of devices sells, its first one holds at least this share: soft prompts lie
#: there alone.
FIRST_PART_SHARE = 1 / 8


def count_crowding(shape: ModelShape, need: JobNeed) -> float:
    """How much more of a job may lie on one device of a group than of one on all projections.

    A device holds a share of what is sold: that of an adapter on all projections. However the
    blocks are divided, so many times the job's state have room there.
    """
    if not has_rank(need):
        return 1 / FIRST_PART_SHARE
    own = count_block_widths(shape, need.adapter.target_modules)
    usual = count_block_widths(shape, None)
    return max(
        (width / sum(own)) / (max(1, most) / sum(usual))
        for width, most in zip(own, usual, strict=True)
    )


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
    sizes = _list_sizes(parts, adapter)
    taken += sum(count_matrix_bytes(rank, width, device=device) for rank, width in sizes)
    taken += _count_growth_bytes(parts, adapter, device=device)
    if device == "cuda" and profile.activation_bytes < FLOAT_BYTES:
        # of experts, one's matrices at a time
        rows = count_stack_rows(adapter.rank, device=device)
        widths = sum(part.inputs + part.outputs for part in parts if part.experts == 1)
        taken += profile.activation_bytes * rows * widths
    if adapter.dora:
        # learnt lengths, and the squares of those of the frozen weights
        taken += sum(
            count_trained_bytes(part.outputs, device=device)
            + count_tensor_bytes(part.outputs, device=device)
            for part in parts
        )
    return taken


def _list_sizes(parts: Sequence[Projection], adapter: AdapterSpec) -> list[tuple[int, int]]:
    """Rank and width of each of an adapter's matrices; those of all experts are one."""
    return [
        (adapter.rank * part.experts, width)
        for part in parts
        for width in (part.inputs, part.outputs)
    ]


def _count_growth_bytes(parts: Sequence[Projection], adapter: AdapterSpec, *, device: str) -> int:
    """One matrix and its gradient are there twice while it grows or shrinks."""
    return max(
        2 * FLOAT_BYTES * count_stack_rows(rank, device=device) * width
        for rank, width in _list_sizes(parts, adapter)
    )


def count_crowded_bytes(shape: ModelShape, profile: DeviceProfile, need: JobNeed) -> float:
    """Bytes that a job is sold with besides, so that each device of a group holds its part of it.

    Whichever device the largest tensor of experts is on, that grows there; what a device sets aside
    for growing is for matrices alone.
    """
    more = (count_crowding(shape, need) - 1) * count_state_bytes(shape, profile, need)
    parts = find_adapted(shape, need.adapter.target_modules) if has_rank(need) else ()
    experts = [part for part in parts if part.experts > 1]
    if not experts:
        return more
    return more + _count_growth_bytes(experts, need.adapter, device=profile.device) / (
        FIRST_PART_SHARE
    )


def count_answer_adapter_bytes(
    shape: ModelShape, profile: DeviceProfile, adapter: AdapterSpec
) -> float:
    """Bytes of an adapter that only answers questions: its values, as wide as activations."""
    device = profile.device
    if adapter.kind is AdapterKind.SOFT_PROMPT:
        return count_tensor_bytes(adapter.virtual_tokens * shape.hidden_size, device=device)
    taken = 0
    for part in find_adapted(shape, adapter.target_modules):
        rows = count_stack_rows(adapter.rank * part.experts, device=device)
        for width in (part.inputs, part.outputs):
            taken += count_tensor_bytes(rows * width, device=device, width=profile.activation_bytes)
        if adapter.dora:
            # learnt lengths, those of the summed weights, and squares of the frozen ones
            taken += 3 * count_tensor_bytes(part.outputs, device=device)
    return taken


def count_inner_bytes(
    shape: ModelShape, profile: DeviceProfile, need: JobNeed, *, recompute: bool
) -> float:
    """Bytes that each token of a GPU's pack has more with this job on it.

    What a job on experts adds is the same on every device.
    """
    adapter = need.adapter
    if adapter.kind is AdapterKind.SOFT_PROMPT:
        return 0.0
    routed = profile.activation_bytes * _count_routed(shape, adapter, recompute=recompute)
    # a base's own code has one job a pass, on its own rows
    if profile.device == "cpu" or shape.stock:
        return routed * (STOCK_PADDING if shape.stock else 1)
    # the inner values, scaled, and without the foreign ones; whose they are takes less than these
    parts = [p for p in find_adapted(shape, adapter.target_modules) if p.experts == 1]
    rows = count_stack_rows(adapter.rank, device=profile.device)
    values = 3 * rows * len(parts) + count_lengthened(shape, adapter)
    return routed + values * profile.activation_bytes / (shape.layers if recompute else 1)


#: Two numbers of 64 bits, in values of 16.
_PLACE = 8


def _count_routed(shape: ModelShape, adapter: AdapterSpec, *, recompute: bool) -> int:
    """Values of a token that an adapter of experts keeps in all blocks, or in the widest one.

    What goes into each expert that the token goes through, inner values, their gradients, and the
    token's place.
    """
    adapted = {part.name for part in find_adapted(shape, adapter.target_modules)}
    blocks = [0] * shape.layers
    for part in shape.experts:
        for number in part.blocks:
            if f"{shape.block.format(number)}.{part.name}" in adapted:
                blocks[number] += part.chosen * (part.inputs + 2 * adapter.rank + _PLACE)
    return max(blocks) if recompute else sum(blocks)


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


def add_dropped(
    sizes: PassBytes,
    shape: ModelShape,
    profile: DeviceProfile,
    parts: Iterable[Projection],
    *,
    recompute: bool,
    spills: bool,
    padding: float = STOCK_PADDING,
) -> PassBytes:
    """With what dropout keeps; of an MLP that sees tiles, for one tile."""
    listed = set(parts)
    within = f".{shape.mlp}."
    tiled = {part for part in listed if spills and shape.mlp and within in part.name}
    tile = _dropped_bytes(shape, profile, tiled, recompute=recompute)
    sizes = replace(sizes, tile=sizes.tile + TILE_TOKENS[profile.device] * tile)
    whole = listed - tiled
    dropped = _dropped_bytes(shape, profile, whole, recompute=recompute, padding=padding)
    return add_inner(sizes, dropped, recompute=recompute)


def count_lengthened(shape: ModelShape, adapter: AdapterSpec) -> int:
    """Values of a token that DoRA keeps: each output before it is given its length."""
    if not adapter.dora:
        return 0
    return sum(part.outputs for part in find_adapted(shape, adapter.target_modules))


def has_rank(need: JobNeed) -> bool:
    return need.adapter.kind is not AdapterKind.SOFT_PROMPT
