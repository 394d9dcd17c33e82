"""The memory plan: measured, kept to, and refusing before anything starts."""

from __future__ import annotations

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
from workers.runtime import peak_memory
from workers.runtime.memory_plan import MemoryPlan, fit, job_memory_gb, rehearse, state_gb
from workers.runtime.node_runtime import NodeRuntime
from workers.runtime.peak_memory import measure_growth
from workers.runtime.thread_choice import use_best_threads
from workers.training.compiled_norms import (
    compile_norms,
    compile_norms_if_faster,
    restore_norms,
)
from workers.training.faults import SystemFault
from workers.training.frozen_product import BLAS, ONEDNN, BlasProducts
from workers.training.packed_model import PackedModel
from workers.training.product_choice import use_fastest_products
from workers.training.rehearsal import rehearsal

PLAN = MemoryPlan(base_gb=4.0, token_gb=0.01, recomputed_token_gb=0.001, head_gb=1.0, limit_gb=10.0)


def test_the_pack_takes_what_base_head_and_states_leave():
    found = fit(PLAN, states_gb=2.0, longest_tokens=100, most_tokens=4096)
    assert (found.token_budget, found.recompute) == (300, False)
    found = fit(PLAN, states_gb=2.0, longest_tokens=100, most_tokens=200)
    assert (found.token_budget, found.recompute) == (200, False)


def test_blocks_are_recomputed_only_when_the_longest_row_does_not_fit_otherwise():
    assert fit(PLAN, states_gb=2.0, longest_tokens=300, most_tokens=4096).recompute is False
    found = fit(PLAN, states_gb=2.0, longest_tokens=301, most_tokens=1000)
    assert (found.token_budget, found.recompute) == (1000, True)


def test_what_fits_in_no_way_is_refused_with_the_numbers():
    with pytest.raises(SystemFault, match=r"need 11\.000 GB .* 4000 tokens.* use 10\.000 GB"):
        fit(PLAN, states_gb=2.0, longest_tokens=4000, most_tokens=4096)
    with pytest.raises(SystemFault, match="does not fit"):
        fit(PLAN, states_gb=20.0, longest_tokens=1, most_tokens=4096)


def test_a_measurement_above_the_plan_corrects_it_and_one_below_does_not():
    assert PLAN.measured(token_gb=0.02, recomputed=False).token_gb == 0.02
    assert PLAN.measured(token_gb=0.005, recomputed=False) == PLAN
    assert PLAN.measured(token_gb=0.02, recomputed=True).recomputed_token_gb == 0.02


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_rehearsal_predicts_what_a_real_pack_keeps(family):
    fused = trainer(tiny_model(family))
    plan = rehearse(fused.model, base_gb=0.0, limit_gb=1.0)
    assert fused.model.layers != {}
    assert all(layer.A_NRD is None for layer in fused.model.layers.values())
    for index in range(3):
        admit(
            fused, training_job(f"job-{index}", random_examples(8, seed=index), adapter={"rank": 8})
        )
    fused.round()
    measured = fused.saved_per_token
    assert measured is not None
    # the head's part comes on top of what the rehearsal counts per token
    assert 0.9 < measured / (plan.token_gb * 1e9) < 1.4


def test_growth_that_tensors_do_not_explain_is_set_aside():
    # a pack of 100 tokens foreseen at 1 GB and a head of 1 GB
    grown = PLAN.grown(gb=3.5, tokens=100, token_gb=0.01)
    assert grown.unforeseen_gb == pytest.approx(1.5)
    assert grown.free_gb(2.0) == pytest.approx(PLAN.free_gb(2.0) - 1.5)
    assert grown.grown(gb=2.5, tokens=100, token_gb=0.01) == grown
    assert PLAN.grown(gb=1.9, tokens=100, token_gb=0.01) == PLAN


def test_growth_counts_pages_that_were_touched_and_given_back():
    with measure_growth() as growth:
        block = torch.ones(30_000_000)
        del block
    assert growth.peak_bytes is not None
    assert 100e6 < growth.peak_bytes < 400e6


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


def test_a_jobs_state_is_its_values_gradient_and_two_moments():
    assert state_gb([torch.zeros(10, 10), torch.zeros(50)]) == pytest.approx(150 * 16 / 1e9)
    job = training_job("a", random_examples(8, seed=1, shortest=20, longest=20))
    assert job_memory_gb(PLAN, job, 0.5) == pytest.approx(0.5 + 4 * 20 * 0.01)


def test_recomputing_keeps_fewer_bytes():
    kept = []
    for recompute in (False, True):
        fused = trainer(tiny_model())
        fused.model.checkpoint_layers = recompute
        admit(fused, training_job("a", random_examples(8, seed=1)))
        fused.round()
        kept.append(fused.saved_per_token or 0.0)
    assert kept[1] < 0.5 * kept[0]


def test_the_context_bounds_positions_and_windows():
    model = tiny_model("mistral")
    model.config.sliding_window = 48
    assert PackedModel(model).context_length == 48
    assert PackedModel(tiny_model("gpt2")).context_length == 96


def test_compiled_norms_give_the_plain_numbers_and_can_be_taken_back():
    packed = PackedModel(tiny_model())
    assert compile_norms_if_faster(packed) is False
    with rehearsal(packed, tokens=32) as pack, torch.no_grad(), packed.streaming(pack):
        plain = packed.hidden(pack)
        compile_norms(packed, backend="eager")
        torch.testing.assert_close(packed.hidden(pack), plain)
        restore_norms(packed)
        assert torch.equal(packed.hidden(pack), plain)


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
