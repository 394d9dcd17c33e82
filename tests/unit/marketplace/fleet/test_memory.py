"""What a job's memory is sold as: its adapter's, whatever its rows."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from marketplace.fleet.memory import compute_memory_demand, find_fitting_rank, size_for_jobs
from marketplace.fleet.models import Zone
from tests import market_builders as market
from tests.shape_builders import build_bert_shape
from workers.protocol.job_spec import AdapterKind, AdapterSpec
from workers.protocol.model_shape import BasePart

LLAMA_8B = Zone(
    model_shape=asdict(market.LLAMA_8B), dtype="auto", max_sequence_length=4096, base_memory_gb=16.9
)


def test_a_job_takes_its_state_a_copy_in_16_bits_and_its_share_of_a_pack():
    # Llama 3 8B with rank 16 on all seven projections: 41.9 million weights, as PEFT prints it.
    # Inner values of seven projections, thrice, of 16,384 tokens in 16 bits. And the widest matrix
    # with its gradient, which is there twice while it grows.
    expected = (16 + 2) * 41_943_040 + 3 * 16 * 7 * 16384 * 2 + 8 * 16 * 14336
    assert compute_memory_demand(zone=LLAMA_8B, adapter=AdapterSpec()) * 1e9 == pytest.approx(
        expected
    )


def test_rows_of_an_adapter_are_counted_in_eights_as_gpus_have_them():
    demands = [compute_memory_demand(zone=LLAMA_8B, adapter=AdapterSpec(rank=r)) for r in (4, 5, 8)]
    values = 41_943_040 // 16
    # Moments are of the rank itself.
    assert (demands[1] - demands[0]) * 1e9 == pytest.approx(8 * values)
    assert (demands[2] - demands[0]) * 1e9 == pytest.approx(4 * 8 * values)


def test_a_soft_prompt_takes_its_own_values_of_the_first_device_alone():
    prompt = AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=20)
    # which holds at least an eighth of what is sold
    assert compute_memory_demand(zone=LLAMA_8B, adapter=prompt) * 1e9 == pytest.approx(
        8 * 16 * 20 * 4096
    )


def test_an_adapter_on_one_block_takes_what_it_would_on_all_blocks():
    one, all_blocks = (
        compute_memory_demand(zone=LLAMA_8B, adapter=AdapterSpec(target_modules=(name,)))
        for name in ("model.layers.3.self_attn.q_proj", "q_proj")
    )
    # but for the inner values of 31 blocks, and with the widest matrix as often as it may grow
    widest, inner = 8 * 16 * 4096, 3 * 16 * 16384 * 2 / 32
    assert (one - all_blocks) * 1e9 == pytest.approx(31 * (widest - inner))


def test_an_encoders_job_takes_a_head_of_as_many_labels_as_there_may_be():
    shape = build_bert_shape(
        hidden_size=64, layers=2, intermediate_size=128, vocab_size=512, heads=4
    )
    bert = Zone(model_shape=asdict(shape), dtype="float32", max_sequence_length=128)
    none, ten = (
        compute_memory_demand(zone=bert, adapter=AdapterSpec(), rows=rows) for rows in (0, 10)
    )
    # Value, gradient and two moments of the weights and, in whole allocations, of the biases.
    assert (ten - none) * 1e9 == pytest.approx(4 * (4 * 10 * 64 + 512))


@given(st.integers(1, 256), st.floats(0.01, 12.0))
def test_the_rank_that_is_said_to_fit_is_the_largest_that_does(rank, room_gb):
    adapter = AdapterSpec(rank=rank)
    need_gb = compute_memory_demand(zone=LLAMA_8B, adapter=adapter)
    assume(need_gb > room_gb)
    found = find_fitting_rank(zone=LLAMA_8B, adapter=adapter, room_gb=room_gb)
    demands = {
        r: compute_memory_demand(zone=LLAMA_8B, adapter=AdapterSpec(rank=r)) for r in range(1, rank)
    }
    fitting = [r for r, gb in demands.items() if gb <= room_gb]
    assert found == max(fitting, default=None)


def test_a_group_is_sold_by_its_tightest_device():
    even = tuple(BasePart(8, 4.2) for _ in range(4))
    room = {"device": "cuda", "limit_gb": 4 * 24.0, "base_gb": 16.8}
    alike = size_for_jobs(LLAMA_8B, **room, parts=even)
    # One device with the base and less room beside it.
    single = size_for_jobs(LLAMA_8B, device="cuda", limit_gb=24.0, base_gb=16.8)
    assert alike is not None
    assert single is not None
    assert 4 * single < alike < 4 * (24.0 - 4.2)
    heavy = (BasePart(8, 7.2), *[BasePart(8, 3.2)] * 3)
    tight = size_for_jobs(LLAMA_8B, **room, parts=heavy)
    assert tight == pytest.approx(alike - 4 * 3.0)
    # What the zone counts for the base is more than was measured.
    more = size_for_jobs(LLAMA_8B, **room | {"base_gb": 17.8}, parts=even)
    assert more == pytest.approx(alike - 4 * 0.25)
    # Where it is less, each device has what was measured there.
    assert size_for_jobs(LLAMA_8B, **room | {"base_gb": 15.8}, parts=even) == alike
