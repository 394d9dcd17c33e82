"""What the market sells of one node together, that node admits together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.market_builders import LLAMA_8B, SHAPE
from tests.shape_builders import build_bert_shape
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.memory import (
    GB,
    count_sold_job_bytes,
    find_longest_example,
    sum_total_gb,
)
from workers.protocol.model_shape import BasePart
from workers.protocol.part_memory import choose_cuts, fit_pack, share_base, size_node
from workers.protocol.pass_bytes import describe_device

ENCODER = build_bert_shape(
    hidden_size=768, layers=12, intermediate_size=3072, vocab_size=30522, heads=12
)
#: Attention in every second block, and a wide MLP in the first alone.
UNEVEN = replace(
    LLAMA_8B,
    parts=tuple(
        replace(part, blocks=part.blocks[::2] if "attn" in part.name else part.blocks[:1])
        for part in LLAMA_8B.parts
    ),
)
prompts = st.builds(
    AdapterSpec,
    kind=st.just(AdapterKind.SOFT_PROMPT),
    rank=st.just(16),
    virtual_tokens=st.integers(1, 512),
)
adapters = st.one_of(
    st.builds(
        AdapterSpec,
        rank=st.integers(1, 256),
        target_modules=st.sampled_from([None, ("q_proj",), ("q_proj", "down_proj")]),
    ),
    prompts,
)
encoder_adapters = st.builds(AdapterSpec, rank=st.integers(1, 256))


@st.composite
def nodes_with_jobs(draw):
    """A model, a node of it, and jobs as the market would fill it with."""
    shape = draw(st.sampled_from([SHAPE, LLAMA_8B, ENCODER]))
    terms = {"dtype": draw(st.sampled_from(["auto", "float32", "bfloat16"]))}
    length = draw(st.integers(16, 65536))
    device = draw(st.sampled_from(["cpu", "cuda"]))
    base_gb = draw(st.floats(0.01, 40.0))
    limit_gb = base_gb + draw(st.floats(0.05, 160.0))
    profile = describe_device(device, terms["dtype"])
    longest = find_longest_example(shape, sequence_length=length)
    room = {"limit_gb": limit_gb, "host_gb": draw(st.sampled_from([0.0, 1.0, 64.0]))}
    parts = [BasePart(shape.layers, base_gb)]
    sized = size_node(shape, profile, parts=parts, longest_tokens=longest, **room)
    left_gb = 0.0 if sized is None else sized.jobs_gb
    needs = []
    kinds = encoder_adapters if shape.encoder else adapters
    for adapter in draw(st.lists(kinds, max_size=12)):
        need = JobNeed(adapter, labels=draw(st.integers(2, 50)) if shape.encoder else 0)
        gb = count_sold_job_bytes(shape, need, sequence_length=length, **terms) / GB
        if gb <= left_gb:
            left_gb -= gb
            needs.append(need)
    # What the node finds is no more than what the market reckoned with.
    base_gb -= draw(st.floats(0.0, 0.005))
    return shape, profile, base_gb, room, needs, draw(st.integers(1, longest))


@st.composite
def groups_with_jobs(draw):
    """A model, a group of devices, and jobs on any of its blocks as the market would fill it."""
    shape = draw(st.sampled_from([LLAMA_8B, UNEVEN]))
    terms = {"dtype": draw(st.sampled_from(["float32", "bfloat16"]))}
    profile = describe_device(draw(st.sampled_from(["cpu", "cuda"])), terms["dtype"])
    count = draw(st.sampled_from([2, 4, 8]))
    limit_gb = draw(st.floats(4.0, 90.0))
    four_bit = draw(st.booleans())
    length = draw(st.integers(16, 16384))
    longest = find_longest_example(shape, sequence_length=length)
    cuts = choose_cuts(shape, profile, parts=count, limit_gb=limit_gb, four_bit=four_bit)
    parts = share_base(shape, profile, cuts=cuts, four_bit=four_bit)
    sized = size_node(shape, profile, parts=parts, limit_gb=limit_gb, longest_tokens=longest)
    left_gb = 0.0 if sized is None else sized.jobs_gb
    needs = []
    names = [part.name for part in shape.list_projections()]
    targets = st.one_of(
        st.sampled_from([None, ("q_proj",), ("q_proj", "down_proj")]),
        st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True).map(tuple),
    )
    made = st.builds(
        AdapterSpec, rank=st.integers(1, 256), target_modules=targets, dora=st.booleans()
    )
    for adapter in draw(st.lists(st.one_of(made, prompts), max_size=12)):
        gb = count_sold_job_bytes(shape, JobNeed(adapter), sequence_length=length, **terms) / GB
        if gb <= left_gb:
            left_gb -= gb
            needs.append(JobNeed(adapter))
    return shape, profile, parts, limit_gb, needs, draw(st.integers(1, longest))


@given(groups_with_jobs(), st.floats(0.0, 100.0))
def test_a_group_admits_together_what_the_market_sold_of_it_together(made, unforeseen_gb):
    shape, profile, parts, limit_gb, needs, longest = made
    assert sum(part.blocks for part in parts) == shape.layers
    if not needs:
        return
    pack = fit_pack(
        shape,
        profile,
        parts=parts,
        limit_gb=limit_gb,
        needs=needs,
        longest_tokens=longest,
        unforeseen_gb=unforeseen_gb,
    )
    assert pack is not None
    assert pack.recompute
    assert pack.token_budget >= longest


@given(nodes_with_jobs(), st.floats(0.0, 100.0))
def test_a_node_admits_together_what_the_market_sold_of_it_together(made, unforeseen_gb):
    shape, profile, base_gb, room, needs, longest = made
    if not needs:
        return
    pack = fit_pack(
        shape,
        profile,
        parts=[BasePart(shape.layers, base_gb)],
        needs=needs,
        longest_tokens=longest,
        unforeseen_gb=unforeseen_gb,
        **room,
    )
    assert pack is not None
    assert pack.token_budget >= longest
    peak_gb = sum_total_gb(shape, profile, base_gb=base_gb, pack=pack, needs=needs)
    assert peak_gb <= room["limit_gb"] + 2e-6


def test_one_job_more_than_the_node_has_memory_for_is_not_admitted():
    profile = describe_device("cuda", "auto")
    need = JobNeed(AdapterSpec(rank=256))
    parts = [BasePart(LLAMA_8B.layers, 16.9)]
    room = {"parts": parts, "limit_gb": 39.0, "longest_tokens": 8192}
    assert fit_pack(LLAMA_8B, profile, needs=[need], **room) is not None
    assert fit_pack(LLAMA_8B, profile, needs=[need, need], **room) is None


@pytest.mark.parametrize("shape", [SHAPE, LLAMA_8B])
def test_packs_are_recomputed_only_where_the_longest_row_does_not_fit_otherwise(shape):
    profile = describe_device("cuda", "auto")
    pack = fit_pack(
        shape,
        profile,
        parts=[BasePart(shape.layers, 16.0)],
        limit_gb=156.0,
        needs=[JobNeed(AdapterSpec())],
        longest_tokens=64,
    )
    assert pack is not None
    assert not pack.recompute


@pytest.mark.parametrize(
    "adapter",
    [
        AdapterSpec(rank=256, target_modules=("model.layers.5.mlp.down_proj",)),
        AdapterSpec(kind=AdapterKind.SOFT_PROMPT, rank=16, virtual_tokens=512),
    ],
)
def test_a_group_admits_as_many_jobs_of_one_device_as_are_sold(adapter):
    profile, need = describe_device("cuda", "bfloat16"), JobNeed(adapter)
    parts = tuple(BasePart(8, 4.2) for _ in range(4))
    room = {"parts": parts, "limit_gb": 12.0, "longest_tokens": 2048}
    sized = size_node(LLAMA_8B, profile, **room)
    assert sized is not None
    gb = count_sold_job_bytes(LLAMA_8B, need, dtype="bfloat16", sequence_length=2048) / GB
    needs = [need] * int(sized.jobs_gb / gb)
    assert len(needs) > 4
    assert fit_pack(LLAMA_8B, profile, needs=needs, **room) is not None
