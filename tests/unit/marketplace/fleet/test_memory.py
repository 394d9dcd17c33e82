"""The memory of a job: monotone, and never below what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.fleet.memory import (
    CONSTANT_BYTES,
    MeasuredMemory,
    calibration_factor,
    job_memory_gb,
)
from tests import market_builders as market
from workers.protocol.memory import adapter_parameters
from workers.protocol.model_shape import ModelShape, parse_model_shape

LLAMA_8B = ModelShape(
    hidden_size=4096,
    layers=32,
    intermediate_size=14336,
    vocab_size=128256,
    heads=32,
    kv_heads=8,
    head_size=128,
)


def test_the_adapter_of_a_known_model_has_the_known_number_of_weights():
    # Llama 3 8B with rank 16 on all seven projections: 41.9 million, as PEFT prints it.
    assert adapter_parameters(LLAMA_8B, rank=16, target_modules=None) == 41_943_040
    assert adapter_parameters(LLAMA_8B, rank=8, target_modules=("q_proj", "v_proj")) == 3_407_872


def test_the_formula_adds_up():
    shape = market.SHAPE
    per_layer = 10 * 64 + 3 * 128 + 2 * (64 + 2 * 64) + 7 * 8
    expected = (
        16 * adapter_parameters(shape, rank=8, target_modules=None)
        + 8 * 128 * 2 * per_layer * 4
        + 8 * 128 * 512 * 12
        + CONSTANT_BYTES
    ) / 1e9
    assert job_memory_gb(shape, rank=8, batch_size=8, sequence_length=128) == pytest.approx(
        expected, rel=1e-12
    )


small = st.integers(1, 64)


@given(small, small, small, small, st.integers(1, 4096), st.integers(1, 4096))
def test_more_rank_batch_or_length_never_takes_less(rank, more, batch, larger, length, longer):
    ranks, batches = sorted([rank, more]), sorted([batch, larger])
    lengths = sorted([length, longer])

    def gb(place: int) -> float:
        return job_memory_gb(
            LLAMA_8B, rank=ranks[place], batch_size=batches[0], sequence_length=lengths[0]
        )

    def gb_all(place: int) -> float:
        return job_memory_gb(
            LLAMA_8B,
            rank=ranks[place],
            batch_size=batches[place],
            sequence_length=lengths[place],
        )

    assert gb(0) <= gb(1)
    assert gb_all(0) <= gb_all(1)


@given(
    st.lists(st.builds(MeasuredMemory, small, st.integers(1, 4096), st.floats(0, 500)), max_size=5)
)
def test_no_measured_job_is_sold_less_than_it_took(measured):
    factor = calibration_factor(LLAMA_8B, measured)
    assert factor >= 1
    for row in measured:
        sold = factor * job_memory_gb(
            LLAMA_8B,
            rank=16,
            batch_size=row.batch_size,
            sequence_length=row.sequence_length,
        )
        assert sold >= row.gb * (1 - 1e-12)


def test_the_shape_is_read_from_a_models_configuration():
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 512,
        "num_attention_heads": 4,
    }
    assert parse_model_shape(config) == market.SHAPE
    for wrong in (
        {"hidden_size": 0},
        {"vocab_size": "many"},
        {"num_hidden_layers": True},
        {"num_hidden_layers": 10**6},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            parse_model_shape(config | wrong)
