"""rsLoRA, DoRA, noise on embeddings and ORPO: what stock code and the papers' formulas give."""

from __future__ import annotations

import io
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from tests.unit.workers.training_builders import (
    admit,
    attach,
    completion_rows,
    job_spec,
    random_examples,
    run_steps,
    save_tiny_base,
    tiny_model,
    trainer,
    training_job,
    write_jsonl,
)
from workers.protocol.adapter_check import AdapterError, check_weights
from workers.protocol.adapter_files import write_adapter_zip
from workers.protocol.job_settings import SettingError, check_adapter, check_training
from workers.protocol.job_spec import AdapterKind, AdapterSpec, DataFormat, TrainingSpec, WorkCosts
from workers.protocol.work import RowLengths, WorkPlan
from workers.runtime.node_runtime import NodeRuntime
from workers.training.adapter_export import to_peft_layout
from workers.training.loss import compute_odds_losses
from workers.training.packed_model import PackedModel
from workers.training.packing import PackShare, build_pack
from workers.training.rehearsal import build_rehearsal_pack
from workers.training.start_values import load_start_values

KINDS = {
    "rslora": {"rslora": True},
    "dora": {"dora": True},
    "both on all": {"rslora": True, "dora": True, "target_modules": ("all-linear",)},
}


def draw_values(model, adapter):
    values = model.draw_initial_values(adapter, seed=1)
    generator = torch.Generator().manual_seed(2)
    for name in sorted(values):
        noise = torch.randn(values[name].shape, generator=generator)
        if name.endswith("lora_B"):
            values[name] = 0.05 * noise
        elif not name.endswith("lora_A"):
            values[name] = values[name] * (1 + 0.1 * noise)
    return values


@pytest.mark.parametrize("form", ["segments", "dense"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_pefts_beside_a_plain_neighbour(kind, family, form):
    model = PackedModel(tiny_model(family))
    adapter = AdapterSpec(rank=4, alpha=8.0, **KINDS[kind])
    neighbour = AdapterSpec(rank=2, alpha=2.0)
    values = draw_values(model, adapter)
    model.attach("neighbour", neighbour, draw_values(model, neighbour))
    model.attach("rehearsal", adapter, values)
    rows = random_examples(3, seed=5)
    pack = build_pack(
        [PackShare("neighbour", rows[:1], 0, 0), PackShare("rehearsal", rows[1:], 0, 0)],
        device=model.device,
        pad_to=16,
    )
    with model.streaming(pack, form=form):
        nll_M = model.compute_nll(
            model.hidden(pack).index_select(0, pack.predict_M), pack.targets_M
        )
        nll_M.sum().backward()
    own_M = nll_M[pack.sequence_M > 0]

    stock = get_peft_model(
        tiny_model(family),
        LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules=model.name_targets(adapter),
            use_rslora=adapter.rslora,
            use_dora=adapter.dora,
            fan_in_fan_out=family == "gpt2",
        ),
    ).eval()
    theirs = {
        name.replace(".default.weight", "").replace("_vector", ""): parameter
        for name, parameter in stock.named_parameters()
    }
    for name, value in values.items():
        theirs[f"base_model.model.{name}"].data = to_peft_layout(name, value)
    losses = []
    for example in rows[1:]:
        [sequence] = example.sequences
        tokens_T = torch.from_numpy(sequence.tokens)
        logits_TV = stock(input_ids=tokens_T[None]).logits[0]
        nll = F.cross_entropy(logits_TV[:-1], tokens_T[1:], reduction="none")
        losses.append(nll[torch.from_numpy(sequence.weights[1:] > 0)])
    torch.cat(losses).sum().backward()
    torch.testing.assert_close(own_M, torch.cat(losses), rtol=1e-5, atol=1e-5)
    for name, _, gradient in model.tensors("rehearsal"):
        wanted = theirs[f"base_model.model.{name}"].grad
        torch.testing.assert_close(to_peft_layout(name, gradient), wanted, rtol=2e-4, atol=2e-5)


def test_a_job_of_magnitudes_ends_as_a_file_that_peft_loads_and_the_market_takes(tmp_path):
    base = save_tiny_base(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(12))
    spec = job_spec("job", base, data, adapter={"dora": True, "rslora": True})
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path, reproducible=True)
    try:
        sink = attach(runtime, spec, data)
        sink.wait()
        assert sink.outcome == "finished", sink.reason
        model = runtime.resident(base).model
        archive = tmp_path / "adapter.zip"
        weights = (sink.adapter_dir / "adapter_model.safetensors").read_bytes()
        with archive.open("wb") as file:
            write_adapter_zip(file, texts={}, weights=[weights])
        check = partial(check_weights, size=len(weights), shape=model.shape)
        check(io.BytesIO(weights), adapter=spec.adapter)
        plain = AdapterSpec(rank=4, alpha=8.0)
        with pytest.raises(AdapterError, match="lora_magnitude_vector"):
            check(io.BytesIO(weights), adapter=plain)
        stock = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base.source), sink.adapter_dir
        ).eval()
        pack = build_rehearsal_pack(model, lengths=(20,))
        shapes = model.list_shapes(spec.adapter)
        values = load_start_values(archive, shapes=shapes, scale=1.0)
        model.attach("rehearsal", spec.adapter, values)
        with torch.no_grad(), model.streaming(pack):
            ours = model.compute_logits(model.hidden(pack))
        with torch.no_grad():
            theirs = stock(input_ids=pack.tokens_T[None]).logits[0]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    finally:
        runtime.close()


def test_each_of_these_has_its_solo_curve_beside_the_others():
    changes = [
        {"adapter": {"dora": True, "dropout": 0.2}},
        {"training": {"neftune_alpha": 5.0}},
        {"adapter": {"rslora": True}},
    ]

    def jobs():
        return [
            training_job(f"job-{place}", random_examples(12, seed=place), **change)
            for place, change in enumerate(changes)
        ]

    fused = trainer(tiny_model(), token_budget=120)
    for job in jobs():
        admit(fused, job)
    together = run_steps(fused, 3)
    for job in jobs():
        alone = trainer(tiny_model())
        admit(alone, job)
        assert together[job.job_id] == pytest.approx(run_steps(alone, 3)[job.job_id], rel=1e-5)


def test_noise_has_the_papers_size_and_is_on_the_rows_of_its_own_job_only():
    model = PackedModel(tiny_model())
    rows = random_examples(2, seed=4, shortest=20, longest=20)
    shares = [
        PackShare("quiet", rows[:1], 0, step=3),
        PackShare("noisy", rows[1:], 0, step=3, noise=5.0),
    ]
    pack = build_pack(shares, device=model.device)
    with model.streaming(pack):
        added_TD = model.embed_pack(pack) - model.model.get_input_embeddings()(pack.tokens_T)
    assert not added_TD[:20].any()
    largest = 5.0 / np.sqrt(20 * model.shape.hidden_size)
    noise = added_TD[20:].detach() / largest
    assert 0.98 < noise.abs().max() <= 1.0001
    assert abs(float(noise.mean())) < 0.1
    assert float(noise.var()) == pytest.approx(1 / 3, rel=0.15)
    again = build_pack(shares[1:], device=model.device)
    with model.streaming(again):
        alone_TD = model.embed_pack(again) - model.model.get_input_embeddings()(again.tokens_T)
    torch.testing.assert_close(alone_TD, added_TD[20:], rtol=0, atol=0)


def test_odds_are_weighed_as_in_the_paper():
    nll_S = torch.tensor([3.0, 8.0, 2.0, 1.0, 0.0, 4.0], requires_grad=True)
    tokens_S = torch.tensor([3, 4, 2, 4, 5, 4])
    losses = compute_odds_losses(nll_S, tokens_S, weight=0.25)
    chosen, rejected = torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -0.25])
    odds = (chosen - rejected) - (
        torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
    )
    wanted = -chosen - 0.25 * F.logsigmoid(odds)
    torch.testing.assert_close(losses[:2], wanted)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(nll_S.grad).all()


def test_orpo_learns_from_pairs_without_a_pass_of_the_bare_base(tmp_path):
    base = save_tiny_base(tmp_path / "base")
    pairs = [{"prompt": f"Q{i}?", "chosen": " blue", "rejected": " red"} for i in range(16)]
    data = write_jsonl(tmp_path / "pairs.jsonl", pairs)
    spec = job_spec(
        "job",
        base,
        data,
        data_format=DataFormat.PREFERENCE,
        training={"preference_loss": "orpo", "epochs": 3},
    )
    runtime = NodeRuntime(device="cpu", cache_dir=tmp_path, reproducible=True)
    try:
        sink = attach(runtime, spec, data)
        [job] = runtime.resident(base).trainer.jobs.values()
        summary = sink.wait()
        assert sink.outcome == "finished", sink.reason
        assert not job.reference_nll
        assert summary.valid_loss_after < 0.7 * summary.valid_loss_before
        assert "ORPO beta" in (sink.adapter_dir / "README.md").read_text()
    finally:
        runtime.close()


def test_orpo_is_less_work_than_dpo_by_the_pass_of_the_bare_base():
    rows = RowLengths.of([[(8, 4), (6, 2)]] * 10)
    none = RowLengths.of([])
    units = {
        kind: WorkPlan(
            WorkCosts(), TrainingSpec(epochs=1, preference_loss=kind), train=rows, valid=none
        ).total_units
        for kind in ("dpo", "orpo")
    }
    assert units == {"dpo": 210, "orpo": 140}


@pytest.mark.parametrize(
    ("check", "settings", "name"),
    [
        (check_training, TrainingSpec(preference_loss="kto"), "training.preference_loss"),
        (check_training, TrainingSpec(neftune_alpha=-1.0), "training.neftune_alpha"),
        (check_training, TrainingSpec(neftune_alpha=float("nan")), "training.neftune_alpha"),
        (
            check_adapter,
            AdapterSpec(target_modules=("all-linear", "q_proj")),
            "adapter.target_modules",
        ),
        (
            check_adapter,
            AdapterSpec(AdapterKind.SOFT_PROMPT, virtual_tokens=4, dora=True),
            "adapter.dora",
        ),
    ],
)
def test_settings_that_no_job_can_have_are_named(check, settings, name):
    with pytest.raises(SettingError) as refused:
        check(settings)
    assert refused.value.setting == name
