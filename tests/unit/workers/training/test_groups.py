"""A base whose blocks are divided among devices: losses and adapters are those of one device."""

from __future__ import annotations

import random
import types
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, Qwen3MoeConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.unit.workers.training_builders import (
    admit,
    random_examples,
    run_steps,
    tiny_config,
    training_job,
)
from workers.bench.models import TYPES, WINDOWS
from workers.protocol.job_spec import AdapterKind
from workers.protocol.memory import GB
from workers.protocol.part_memory import count_held_packs
from workers.runtime.resident import _measure_parts
from workers.training import flight
from workers.training.architectures import quantize_projections
from workers.training.fused_trainer import FusedTrainer
from workers.training.job import TrainingJob
from workers.training.packed_model import PackedModel
from workers.training.packing import Example
from workers.training.part_pass import PartPass, divide_passes
from workers.training.step_results import StepFailure
from workers.training.stock_model import StockModel

SIZES = {
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.15,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
LORA = {"rank": 8, "dropout": 0.1}
EXPERTS_TOO = {"target_modules": ("v_proj", "experts.gate_up_proj", "experts.down_proj")}
GEMMA = TYPES["gemma4_text"] | {
    "layer_types": 2 * WINDOWS["layer_types"],
    "vocab_size_per_layer_input": SIZES["vocab_size"],
}
FAMILIES = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SIZES, **EXPERTS),
    "gemma2": lambda: tiny_config("gemma2"),
    # whose blocks have embeddings of their own
    "gemma4": lambda: CONFIG_MAPPING["gemma4_text"](**SIZES | GEMMA),
}


def build(family: str = "llama", *, parts: int, cuts: tuple[int, ...] = (), **changes):
    """A trainer on a base that is cut into parts, all on the CPU."""
    torch.manual_seed(7)
    config = FAMILIES[family]()
    config.num_hidden_layers = sum(cuts) or config.num_hidden_layers
    base = AutoModelForCausalLM.from_config(config).eval()
    if changes.pop("four_bit", False):
        quantize_projections(base)
    model = (StockModel if family == "gemma2" else PackedModel)(base)
    cuts = cuts or tuple(len(model.blocks) // parts for _ in range(parts))
    ends = list(accumulate(cuts))
    divide_passes(model, tuple(range(end - n, end) for end, n in zip(ends, cuts, strict=True)))
    model.checkpoint_layers = changes.pop("recompute", False)
    if form := changes.pop("form", None):
        model.choose_form = lambda: form
    return FusedTrainer(model, token_budget=changes.pop("token_budget", 4096))


def list_jobs(*, on_experts: bool = False) -> list[TrainingJob]:
    """LoRA, DoRA, preferences, a soft prompt and NEFTune, of different ranks and targets."""
    rows = [random_examples(12, seed=seed) for seed in range(6)]
    pairs = tuple(
        Example(a.line, a.sequences + b.sequences) for a, b in zip(rows[2], rows[3], strict=True)
    )
    dpo = training_job("dpo", pairs, adapter={"rank": 8}, training={"batch_size": 3})
    soft = {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 4}
    return [
        training_job("lora", rows[0], adapter=EXPERTS_TOO if on_experts else LORA),
        training_job("dora", rows[1], adapter={"rank": 16, "dora": True}),
        TrainingJob(dpo.spec, replace(dpo.data, kind="pairs")),
        training_job("soft", rows[4], adapter=soft, training={"learning_rate": 1e-2}),
        training_job(
            "noisy",
            rows[5],
            adapter={"target_modules": ("q_proj", "o_proj")},
            training={"neftune_alpha": 5.0, "max_grad_norm": 0.3},
        ),
    ]


def train(fused: FusedTrainer, jobs: list[TrainingJob], steps: int = 3):
    for job in jobs:
        admit(fused, job)
    losses = run_steps(fused, steps)
    fused.land()
    tensors = {name: {n: v.clone() for n, v, _ in fused.model.tensors(name)} for name in losses}
    return losses, tensors, {name: job.progress.step for name, job in fused.jobs.items()}


@pytest.mark.parametrize(
    ("way", "parts"),
    [
        *(({}, 2), ({"recompute": True}, 4), ({"token_budget": 60}, 4), ({"form": "dense"}, 4)),
        *(({"four_bit": True}, 2), ({"family": "qwen3"}, 2), ({"family": "qwen3_moe"}, 4)),
        ({"family": "gemma4"}, 4),
    ],
    ids=str,
)
def test_losses_and_adapters_are_those_of_one_device(way, parts):
    alone, grouped = build(**way, parts=1), build(**way, parts=parts)
    assert [len(part) for part in grouped.model.parts] == [4 // parts] * parts
    on_experts = way.get("family") == "qwen3_moe"
    expected, values, steps = train(alone, list_jobs(on_experts=on_experts))
    losses, found, made = train(grouped, list_jobs(on_experts=on_experts))
    assert any("experts" in name for name in found["lora"]) is on_experts
    assert sorted(losses) == ["dora", "dpo", "lora", "noisy", "soft"]
    for name, curve in expected.items():
        assert losses[name] == pytest.approx(curve, rel=5e-6 if "token_budget" not in way else 5e-5)
        if made[name] != steps[name]:
            continue
        for part, value in values[name].items():
            torch.testing.assert_close(found[name][part], value, rtol=1e-3, atol=2e-5)


def test_a_base_that_its_own_code_computes_is_not_cut():
    fused = build("gemma2", parts=2)
    assert [len(part) for part in fused.model.parts] == [2]
    expected, *_ = train(build("gemma2", parts=1), list_jobs()[:2])
    losses, *_ = train(fused, list_jobs()[:2])
    assert losses == expected


def test_tied_embeddings_are_counted_on_both_devices_and_are_one_where_passes_are_whole(
    monkeypatch,
):
    cut = build("qwen3", parts=2).model
    table = SIZES["vocab_size"] * SIZES["hidden_size"] * 4 / GB
    blocks = [
        sum(p.numel() * 4 for number in part for p in cut.backbone.layers[number].parameters()) / GB
        for part in cut.parts
    ]
    first, last = _measure_parts(cut, cut.parts, beside_bytes=0.0)
    assert first.base_gb == pytest.approx(blocks[0] + table)
    assert last.base_gb == pytest.approx(blocks[1] + table + SIZES["hidden_size"] * 4 / GB)

    def refuse(_way):
        raise ValueError("blocks do not follow each other")

    monkeypatch.setattr(PartPass, "run_next", refuse)
    whole = build("qwen3", parts=2).model
    assert [len(part) for part in whole.parts] == [4]
    model = whole.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def follow(fused: FusedTrainer, monkeypatch) -> list[tuple[PartPass, int, int, tuple[int, ...]]]:
    """Every unit: whose it is, which part does it, how many packs the part holds then, and how
    many steps the pack's jobs have made."""
    units = []
    plain = PartPass.run_next

    def run_next(way):
        part = way.part
        plain(way)
        held = sum(flight.way.holds(part) for flight in fused._flights)
        shares = [flight.shares for flight in fused._flights if flight.way is way]
        steps = tuple(fused.jobs[share.job_id].progress.step for of in shares for share in of)
        units.append((way, part, held, steps))

    monkeypatch.setattr(PartPass, "run_next", run_next)
    return units


@pytest.mark.parametrize("seed", range(2))
def test_jobs_that_come_and_go_leave_their_neighbours_alone(seed, monkeypatch):
    draw = random.Random(seed)
    fused = build(parts=2 if seed % 2 else 4, token_budget=90)
    units = follow(fused, monkeypatch)
    curves: dict[str, list[float]] = {}
    sources = {f"job-{number}": 100 * seed + number for number in range(6)}

    def job(name):
        rank = 4 * (1 + sources[name] % 3)
        return training_job(name, random_examples(24, seed=sources[name]), adapter={"rank": rank})

    waiting = list(sources)
    for _ in range(60):
        if waiting and (len(fused.jobs) < 2 or draw.random() < 0.3):
            name = waiting.pop()
            admit(fused, job(name))
            curves[name] = []
        elif len(fused.jobs) > 2 and draw.random() < 0.1:
            fused.remove(draw.choice(sorted(fused.jobs)))
        for result in fused.round():
            assert not isinstance(result, StepFailure)
            curves[result.job_id].append(result.loss)
    assert not waiting
    parts = len(fused.model.parts)
    # one after the other at its own part, forward and back, and none holds more than it may
    for way in {way for way, *_ in units if way.is_through}:
        order = [part for other, part, *_ in units if other is way]
        assert order == [*range(parts), parts - 1, *reversed(range(parts))]
        # no pack of a job's next batch begins before its step
        assert len({steps for other, *_, steps in units if other is way}) == 1
    assert all(held <= count_held_packs(parts, part) for _, part, held, _ in units)
    assert max(held for _, part, held, _ in units if part == 0) > 1
    for name, curve in curves.items():
        alone = build(parts=1)
        admit(alone, job(name))
        assert curve == pytest.approx(run_steps(alone, len(curve))[name], rel=1e-5)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_a_part_without_memory_ends_or_halves_the_large_job_alone(part):
    fused = build(parts=4)
    rows = random_examples(24, seed=1, shortest=20)
    admit(fused, training_job("big", rows, training={"batch_size": 12}))
    for name, seed in (("one", 2), ("two", 3)):
        admit(fused, training_job(name, random_examples(24, seed=seed)))
    number = fused.model.parts[part].start
    placed = fused.model.blocks[number]

    def run(hidden, *args, **kwargs):
        if hidden.requires_grad and kwargs["pack"].tokens > 130:
            raise torch.OutOfMemoryError("CUDA out of memory (test)")
        return placed.run(hidden, *args, **kwargs)

    fused.model.blocks[number] = replace(placed, run=run)
    curves = run_steps(fused, 4)
    micro = {name: job.micro_tokens for name, job in fused.jobs.items()}
    assert (micro["one"], micro["two"]) == (None, None)
    for name, seed in (("one", 2), ("two", 3)):
        alone = build(parts=1)
        admit(alone, training_job(name, random_examples(24, seed=seed)))
        assert curves[name] == pytest.approx(run_steps(alone, 4)[name], rel=1e-5)


def test_a_lost_device_is_no_jobs_fault_with_packs_in_flight(monkeypatch):
    fused = build(parts=4)
    for number in range(4):
        admit(fused, training_job(str(number), random_examples(12, seed=number)))
    fused.round()
    assert len(fused._flights) > 1

    def lose_device(*_args, **_options):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(fused.model, "streaming", lose_device)
    with pytest.raises(torch.AcceleratorError):
        fused.round()
    # what is left is taken out without another call of the device
    assert [fused.remove(name).job_id for name in list(fused.jobs)] == ["0", "1", "2", "3"]


def fly(*, token_budget: int) -> FusedTrainer:
    """Three jobs on four parts, with packs of them in flight."""
    fused = build(parts=4, token_budget=token_budget)
    for number in range(3):
        admit(fused, training_job(str(number), random_examples(12, seed=number)))
    fused.round()
    assert len({share.job_id for flight in fused._flights for share in flight.shares}) > 1
    return fused


def fail_once(monkeypatch, error: Exception) -> None:
    plain = PartPass.run_next

    def run_next(_way):
        monkeypatch.setattr(PartPass, "run_next", plain)
        raise error

    monkeypatch.setattr(PartPass, "run_next", run_next)


def test_a_device_lost_while_packs_land_is_told_by_the_next_round(monkeypatch):
    fused = fly(token_budget=90)
    lost = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    fail_once(monkeypatch, lost)
    assert fused.remove("0").job_id == "0"
    assert not fused._flights
    with pytest.raises(torch.AcceleratorError):
        fused.round()


def test_a_device_lost_in_an_evaluation_leaves_no_pack_in_flight(monkeypatch):
    fused = fly(token_budget=90)

    def lose_device(*_args, **_options):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    fused._evaluations["0"] = types.SimpleNamespace(run_pack=lose_device)
    with pytest.raises(torch.AcceleratorError):
        fused.evaluate_next()
    assert not fused._flights


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), KeyError("bug")])
def test_jobs_whose_packs_are_lost_with_one_that_fails_take_turns_as_well(error, monkeypatch):
    fused = fly(token_budget=60)
    flying = {share.job_id for flight in fused._flights for share in flight.shares}
    fail_once(monkeypatch, error)
    assert fused.round() == []
    assert set(fused._suspects) == flying
    turns = list(fused._suspects)
    stepped = [result.job_id for _ in range(12) for result in fused.round()]
    assert stepped[: len(turns)] == turns
    assert not fused._suspects


def test_what_is_kept_is_measured_in_the_first_pack_that_is_through(monkeypatch):
    fused = build(parts=2)
    admit(fused, training_job("one", random_examples(12, seed=1)))
    fail_once(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    assert fused.round() == []
    assert fused.measures_next
    fused.round()
    assert not fused.measures_next
    assert fused.saved_per_token > 0


@pytest.mark.parametrize(
    ("parts", "jobs", "packs"), [(2, 2, 1), (4, 4, 1), (4, 2, 3), (4, 3, 2), (4, 8, 1), (8, 8, 1)]
)
def test_parts_are_busy_where_enough_packs_are_in_flight(parts, jobs, packs, monkeypatch):
    assert (jobs - 1) * packs >= parts - 1
    # the output layer counts as one block here, forward and back
    fused = build(parts=parts, cuts=(*[2] * (parts - 1), 1))

    def run_next(way):
        if way.is_loss:
            way._compute_loss()
        way._next += 1

    def lose_nothing(_model, pack, _jobs, _rows):
        return [torch.zeros(len(share.examples)) for share in pack.shares]

    # the loop alone, without its arithmetic
    monkeypatch.setattr(PartPass, "run_next", run_next)
    monkeypatch.setattr(flight, "compute_example_losses", lose_nothing)
    for number in range(jobs):
        rows = random_examples(24, seed=number, shortest=12, longest=12)
        spec = {"batch_size": 6, "epochs": 40}
        adapter = {"rank": 1, "target_modules": ("q_proj",)}
        admit(fused, training_job(str(number), rows, training=spec, adapter=adapter))
    run_steps(fused, 40)
    assert fused.clock.busy_share >= 0.95
