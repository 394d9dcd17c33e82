"""The memory plan: measured, kept to, and refusing before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.unit.workers.training_builders import (
    RecordingSink,
    admit,
    completion_rows,
    job_spec,
    random_examples,
    save_tiny_base,
    tiny_model,
    trainer,
    training_job,
    write_jsonl,
)
from workers.protocol.job_bytes import JobNeed
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.memory import GB, PackSizing, pack_bytes, sum_total_gb
from workers.protocol.pass_bytes import DeviceProfile, count_head_bytes
from workers.runtime import peak_memory
from workers.runtime.memory_plan import MemoryPlan, fit
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.peak_memory import measure_growth
from workers.runtime.thread_choice import use_best_threads
from workers.training.architectures import read_shape
from workers.training.faults import SystemFault
from workers.training.frozen_product import BLAS, ONEDNN, BlasProducts
from workers.training.packed_model import PackedModel
from workers.training.product_choice import use_fastest_products

SHAPE = read_shape(tiny_model("llama"))
ENGINE = DeviceProfile("cpu", 4)
NEEDS = (JobNeed(AdapterSpec(rank=8)),)


def build_plan(*, free_gb: float, **more) -> MemoryPlan:
    """A plan that leaves so much for the packs of ``NEEDS``."""
    none = PackSizing(0, recompute=False)
    own_gb = sum_total_gb(SHAPE, ENGINE, base_gb=4.0, pack=none, needs=NEEDS) - measure_gb(0)
    return MemoryPlan(SHAPE, ENGINE, base_gb=4.0, limit_gb=own_gb + free_gb, **more)


def measure_gb(tokens: int, *, recompute: bool = False) -> float:
    return pack_bytes(SHAPE, ENGINE, PackSizing(tokens, recompute), needs=NEEDS) / GB


def fit_rows(plan: MemoryPlan, longest_tokens: int) -> PackSizing:
    return fit(plan, needs=NEEDS, others_gb=0.0, longest_tokens=longest_tokens)


def test_the_pack_takes_what_base_head_and_jobs_leave():
    plan = build_plan(free_gb=measure_gb(300))
    assert fit_rows(plan, 100) == PackSizing(300, recompute=False)
    others_gb = measure_gb(300) - measure_gb(100)
    other = fit(plan, needs=NEEDS, others_gb=others_gb, longest_tokens=100)
    assert other == PackSizing(100, recompute=False)
    roomy = build_plan(free_gb=measure_gb(100_000))
    assert fit_rows(roomy, 100) == PackSizing(ENGINE.pack_tokens, recompute=False)


def test_logits_and_a_block_that_runs_backward_are_not_there_at_once():
    kept = SHAPE.layers * SHAPE.hidden_size * ENGINE.activation_bytes
    head = count_head_bytes(SHAPE, ENGINE)
    short, twice = measure_gb(4, recompute=True) * GB, measure_gb(8, recompute=True) * GB
    assert (short, twice) == (4 * kept + head, 8 * kept + head)
    longer = measure_gb(2000, recompute=True) * GB
    assert measure_gb(4000, recompute=True) * GB == pytest.approx(2 * longer)


def test_blocks_are_recomputed_only_when_the_longest_row_does_not_fit_otherwise():
    plan = build_plan(free_gb=measure_gb(300))
    assert fit_rows(plan, 300) == PackSizing(300, recompute=False)
    found = fit_rows(plan, 301)
    assert found.recompute
    assert found.token_budget > 301


def test_what_fits_in_no_way_is_refused_with_the_numbers():
    plan = build_plan(free_gb=measure_gb(3999, recompute=True))
    words = rf"need 4\.\d+ GB .* 4000 tokens.* use {plan.limit_gb:.3f} GB"
    with pytest.raises(SystemFault, match=words):
        fit_rows(plan, 4000)
    with pytest.raises(SystemFault, match="does not fit"):
        fit(plan, needs=NEEDS, others_gb=20.0, longest_tokens=1)


def test_what_a_pack_took_beyond_the_prediction_is_set_aside_for_good():
    plan = build_plan(free_gb=measure_gb(300))
    pack = PackSizing(100, recompute=False)
    grown = plan.grown(gb=plan.predict_pack_gb(pack, NEEDS) + 1.5, pack=pack, needs=NEEDS)
    assert grown.unforeseen_gb == pytest.approx(1.5)
    assert grown.grown(gb=0.1, pack=pack, needs=NEEDS) == grown
    assert plan.grown(gb=0.0, pack=pack, needs=NEEDS) == plan


def test_what_was_not_predicted_makes_packs_smaller_and_refuses_no_job():
    free_gb = measure_gb(300)
    half = build_plan(free_gb=free_gb, unforeseen_gb=free_gb - measure_gb(150))
    assert fit_rows(half, 100) == PackSizing(150, recompute=False)
    whole = build_plan(free_gb=free_gb, unforeseen_gb=9.0)
    assert fit_rows(whole, 100) == PackSizing(100, recompute=True)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_real_pack_keeps_no_more_than_is_predicted(family):
    fused = trainer(tiny_model(family))
    for index in range(3):
        admit(
            fused, training_job(f"job-{index}", random_examples(8, seed=index), adapter={"rank": 8})
        )
    fused.round()
    measured = fused.saved_per_token
    assert measured is not None
    needs = [job.memory_need for job in fused.jobs.values()]
    plan = MemoryPlan(fused.model.shape, ENGINE, base_gb=0.0, limit_gb=1.0)
    predicted_gb = plan.predict_pack_gb(PackSizing(fused.last_pack, recompute=False), needs)
    assert measured * fused.last_pack <= predicted_gb * GB


def test_growth_counts_pages_that_were_touched_and_given_back():
    # In a process of its own: a thread of another test that gives memory back would hide it.
    measured = """
from workers.runtime.peak_memory import measure_growth
with measure_growth() as growth:
    block = b"1" * 120_000_000
    del block
print(growth.peak_bytes)
"""
    ran = subprocess.run(
        [sys.executable, "-c", measured], capture_output=True, text=True, check=True
    )
    assert 100e6 < int(ran.stdout) < 400e6


def test_growth_is_not_guessed_where_the_system_does_not_count_it(monkeypatch, tmp_path):
    monkeypatch.setattr(peak_memory, "_CLEAR", tmp_path / "none" / "clear_refs")
    with measure_growth() as growth:
        pass
    assert growth.peak_bytes is None


def test_a_jobs_first_pack_is_measured_against_the_plan(tmp_path):
    base = save_tiny_base(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(8))
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache")
    try:
        before = runtime.resident(base).plan
        sink = RecordingSink()
        runtime.attach(
            job=job_spec("a", base, data),
            data_path=data,
            validation_path=None,
            sink=sink,
        )
        sink.wait()
        after = runtime.resident(base).plan
    finally:
        runtime.close()
    assert before.unforeseen_gb == 0.0
    assert 0.0 <= after.unforeseen_gb < 1.0
    assert sink.outcome == "finished"


def test_recomputing_keeps_fewer_bytes():
    kept = []
    for recompute in (False, True):
        fused = trainer(tiny_model())
        fused.model.checkpoint_layers = recompute
        admit(fused, training_job("a", random_examples(8, seed=1)))
        fused.round()
        kept.append(fused.saved_per_token or 0.0)
    assert kept[1] < 0.5 * kept[0]


def test_the_context_is_the_models_positions_whatever_its_window():
    model = tiny_model("mistral")
    model.config.sliding_window = 48
    assert PackedModel(model).context_length == 96
    assert PackedModel(tiny_model("gpt2")).context_length == 96


def test_threads_are_measured_and_left_at_the_better_number():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        chosen = use_best_threads(PackedModel(tiny_model()))
        assert chosen in (1, 2)
        assert torch.get_num_threads() == chosen
    finally:
        torch.set_num_threads(before)


def test_the_library_for_frozen_products_is_one_that_was_measured():
    packed = PackedModel(tiny_model())
    chosen = use_fastest_products(packed)
    assert chosen in (BLAS, ONEDNN)
    assert packed.stream.products is chosen


class _Wrong(BlasProducts):
    name = "wrong"

    def apply(self, x_TD, weight_OD, bias_O):
        return super().apply(x_TD, weight_OD, bias_O) * (1 + 1e-4)


class _Missing(BlasProducts):
    name = "missing"

    def apply(self, x_TD, weight_OD, bias_O):
        raise RuntimeError("no such operator")


@pytest.mark.parametrize(
    ("other", "told"),
    [(_Wrong(), "its products are off by 1.0e-04"), (_Missing(), "no such operator")],
)
def test_a_library_that_is_imprecise_or_missing_is_not_used(other, told, caplog):
    packed = PackedModel(tiny_model())
    assert use_fastest_products(packed, other=other) is BLAS
    assert packed.stream.products is BLAS
    assert told in caplog.text


def test_other_number_types_keep_torchs_own_products():
    packed = PackedModel(tiny_model().to(torch.bfloat16))
    assert use_fastest_products(packed, other=_Missing()) is BLAS
