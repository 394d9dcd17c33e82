"""What the market sells, a node trains: both check a job's settings by one table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from marketplace.auction.bidding.terms import ResolvedSettings, resolve_terms
from marketplace.common.errors import UserError
from tests.unit.workers.training_builders import tiny_model
from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.runtime.admission import check_settings
from workers.training.faults import UserFault
from workers.training.packed_model import PackedModel

FAMILIES = ("llama", "qwen3", "gpt2")
MODELS = {family: PackedModel(tiny_model(family)) for family in FAMILIES}


def near(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers about the ends of a range, and far beyond."""
    ends = st.sampled_from([low, high, low - 1, high + 1, low + 1e-9, 2 * high, -high, 10**400])
    inside = st.one_of(st.floats(low, high), st.integers(int(low), int(high)))
    return st.one_of(inside, inside, ends)


NUMBERS = {
    "epochs": near(1, 50),
    "batch_size": near(1, 256),
    "learning_rate": near(1e-8, 1),
    "warmup_share": near(0, 1),
    "weight_decay": near(0, 10),
    "max_grad_norm": near(0, 1e6),
    "sequence_length": near(16, 128),
    "seed": near(0, 2**31 - 1),
    "validation_share": near(0, 0.5),
    "eval_every_steps": near(0, 1_000_000),
    "dpo_beta": near(1e-6, 2),
    "schedule": st.sampled_from(["linear", "cosine", "constant", "steep", ""]),
}
TARGETS = st.sampled_from(
    [
        *("q_proj", "self_attn.q_proj", "model.layers.1.mlp.up_proj", "down_proj", "layers.0.c_fc"),
        *("c_attn", "c_fc", "mlp.c_proj", "lm_head", "q_prok", "", "layers.7.self_attn.q_proj"),
    ]
)
ADAPTER = {
    "rank": near(1, 256),
    "alpha": near(1e-3, 4096),
    "dropout": near(0, 1),
    "virtual_tokens": near(0, 0),
    "init_text": st.sampled_from(["", "Hello", "a\0b", "\ud800", "x" * 3000]),
}


def pick_settings(values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """One setting of a group or none; several wrong ones would hide each other."""
    return st.lists(st.sampled_from(sorted(values)), max_size=1, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: values[name] for name in names})
    )


def sell(
    family: str, adapter: dict[str, Any], training: dict[str, Any]
) -> ResolvedSettings | UserError:
    try:
        return resolve_terms(
            adapter=adapter,
            training=training,
            rows=200,
            longest_row_tokens=60,
            sequence_length_limit=96,
            model=MODELS[family].shape,
        )
    except UserError as error:
        return error


def trains(family: str, adapter: AdapterSpec, training: TrainingSpec) -> bool:
    spec = JobSpec(
        job_id="a",
        base_model=BaseModelRef(name=family, source="/nowhere"),
        data_format=DataFormat.TEXT,
        dataset=BlobRef(url="/x", sha256="", bytes=1),
        adapter=adapter,
        training=training,
    )
    try:
        check_settings(spec)
        MODELS[family].find_adapted(adapter)
    except UserFault:
        return False
    return True


def count_answer(
    found: Counter[str], family: str, adapter: dict[str, Any], training: dict[str, Any]
) -> None:
    terms = sell(family, adapter, training)
    if isinstance(terms, UserError):
        found["refused"] += 1
        assert terms.code == "invalid_hyperparameter"
        assert terms.param
        assert len(terms.message) < 700
    else:
        found["sold"] += 1
        assert trains(family, terms.adapter, terms.training)


def test_numbers_that_the_market_sells_a_node_trains() -> None:
    found: Counter[str] = Counter()

    @settings(max_examples=300)
    @given(pick_settings(ADAPTER), pick_settings(NUMBERS))
    def check(adapter: dict[str, Any], training: dict[str, Any]) -> None:
        count_answer(found, "llama", adapter, training)

    check()
    assert min(found["sold"], found["refused"]) >= 20, found


def test_modules_that_the_market_sells_a_node_has() -> None:
    found: Counter[str] = Counter()

    @settings(max_examples=100)
    @given(st.sampled_from(FAMILIES), st.lists(TARGETS, max_size=2))
    def check(family: str, targets: list[str]) -> None:
        count_answer(found, family, {"target_modules": targets}, {})

    check()
    assert min(found["sold"], found["refused"]) >= 10, found
