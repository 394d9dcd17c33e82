"""How much memory a zone's jobs take, and how much of a node is sold to them.

Both follow from ``workers.protocol.memory``, by which nodes admit as well. The base model and one
pack are the node's; a job adds its adapter, gradients, moments and a share of the pack's inner
values. Batch and length of its rows change nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from marketplace.fleet.models import Zone
from workers.protocol.adapter_check import LABELS_MAX
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.memory import GB, count_sold_job_bytes, find_longest_example
from workers.protocol.model_shape import BasePart, ModelShape, load_shape
from workers.protocol.part_memory import size_node
from workers.protocol.pass_bytes import count_unpacking_bytes, describe_device


def compute_memory_demand(*, zone: Zone, adapter: AdapterSpec, rows: int = 0) -> float:
    """r_i: GB a job takes beside the base model and a pack, on any node of the zone.

    Parameters
    ----------
    rows
        Of the data set: an encoder's head has no more labels.
    """
    need = JobNeed(adapter, labels=min(rows, LABELS_MAX))
    taken = count_sold_job_bytes(
        load_shape(zone.model_shape),
        need,
        dtype=zone.dtype,
        sequence_length=zone.max_sequence_length,
    )
    return taken / GB


def find_fitting_rank(*, zone: Zone, adapter: AdapterSpec, room_gb: float) -> int | None:
    """The largest smaller rank with which a job takes at most ``room_gb``, if there is one."""
    if adapter.kind is AdapterKind.SOFT_PROMPT:
        return None

    def measure(rank: int) -> float:
        return compute_memory_demand(zone=zone, adapter=replace(adapter, rank=rank))

    return bisect_right(range(1, adapter.rank), room_gb, key=measure) or None


def size_for_jobs(
    zone: Zone,
    *,
    device: str,
    limit_gb: float,
    base_gb: float,
    host_gb: float = 0.0,
    parts: Sequence[BasePart] = (),
) -> float | None:
    """GB of a node that are left for jobs beside its base model and a pack, if any are.

    Parameters
    ----------
    device
        ``cpu`` or ``cuda``.
    limit_gb
        What the node may use.
    base_gb
        What the base model takes on it.
    host_gb
        ``NodeFacts.host_gb``.
    parts
        What of the base model is on each device of a group, which share the limit equally.
    """
    shape = load_shape(zone.model_shape)
    longest = find_longest_example(shape, sequence_length=zone.max_sequence_length)
    # never less than what a part holds
    more = max(1.0, base_gb / sum(part.base_gb for part in parts)) if parts else 1.0
    held = [replace(part, base_gb=part.base_gb * more) for part in parts]
    held = held or [BasePart(shape.layers, base_gb)]
    sized = size_node(
        shape,
        describe_device(device, zone.dtype),
        parts=held,
        limit_gb=limit_gb / len(held),
        longest_tokens=longest,
        host_gb=host_gb,
    )
    return None if sized is None else sized.jobs_gb


_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: What a node keeps beside the weights, as a share of them.
_OVERHEAD = 1.05
#: Four bits, and a 32-bit scale for each 64 weights.
_FOUR_BIT_BYTES = 0.5625


def compute_base_model_gb(
    shape: ModelShape, config: Mapping[str, object], *, dtype: str = "auto", four_bit: bool = False
) -> float:
    """GB of a resident base model, from its shape and the type in its ``config.json``."""
    text = config.get("text_config")
    named = [config, cast(Mapping[str, object], text)] if isinstance(text, Mapping) else [config]
    found = [of.get(key) for of in named for key in ("dtype", "torch_dtype")]
    stored = next(filter(None, found), "float32")
    width = _DTYPE_BYTES.get(str(stored) if dtype == "auto" else dtype, 4)
    layers = sum(part.inputs * part.outputs for part in shape.list_projections())
    # embeddings and experts, which are never in four bits
    taken = layers * (_FOUR_BIT_BYTES if four_bit else width) + shape.other_weights * width
    if four_bit:
        taken += count_unpacking_bytes(shape)
    return _OVERHEAD * taken / GB
