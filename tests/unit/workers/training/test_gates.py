"""The engine's promise: a job trains exactly as if it were alone, and as stock PEFT would."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.optim.lr_scheduler import LambdaLR

from tests.unit.workers.training_builders import (
    admit,
    random_examples,
    run_steps,
    tiny_model,
    trainer,
    training_job,
)
from workers.training.frozen_product import BLAS, ONEDNN, FrozenProducts
from workers.training.job import TrainingJob
from workers.training.optimizer import compute_learning_rate
from workers.training.step_results import StepResult

STEPS = 100

#: Eight jobs that share nothing but the base.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"rank": 4, "alpha": 8.0, "lr": 2e-3, "batch": 4, "schedule": "cosine"},
    {"rank": 8, "alpha": 8.0, "lr": 1e-3, "batch": 2, "schedule": "linear", "longest": 40},
    {"rank": 2, "alpha": 16.0, "lr": 5e-4, "batch": 7, "targets": ("q_proj", "v_proj")},
    {"rank": 4, "alpha": 4.0, "lr": 3e-3, "batch": 3, "dropout": 0.1, "schedule": "constant"},
    {"rank": 6, "alpha": 12.0, "lr": 1e-3, "batch": 1, "targets": ("down_proj",), "decay": 0.05},
    {"rank": 16, "alpha": 16.0, "lr": 1e-3, "batch": 5, "clip": 0.0, "longest": 12},
    {"rank": 3, "alpha": 9.0, "lr": 2e-3, "batch": 6, "dropout": 0.3, "clip": 0.1},
    {"rank": 1, "alpha": 2.0, "lr": 4e-3, "batch": 2, "schedule": "linear", "warmup": 0.3},
)


def mixed_job(index: int) -> TrainingJob:
    setting = SETTINGS[index]
    batch = setting["batch"]
    rows = 20 * batch - (index % 2)
    return training_job(
        f"job-{index}",
        random_examples(rows, seed=index, longest=setting.get("longest", 24)),
        adapter={
            "rank": setting["rank"],
            "alpha": setting["alpha"],
            "dropout": setting.get("dropout", 0.0),
            "target_modules": setting.get("targets"),
        },
        training={
            "batch_size": batch,
            "epochs": 5,
            "learning_rate": setting["lr"],
            "schedule": setting.get("schedule", "cosine"),
            "warmup_share": setting.get("warmup", 0.03),
            "weight_decay": setting.get("decay", 0.0),
            "max_grad_norm": setting.get("clip", 1.0),
            "seed": index,
        },
    )


@pytest.fixture(
    scope="module",
    params=[ONEDNN, pytest.param(BLAS, marks=pytest.mark.nightly)],
    ids=lambda products: products.name,
)
def products(request) -> FrozenProducts:
    """The promise holds with every library that may multiply with the frozen weights."""
    return request.param


@pytest.fixture(scope="module")
def solo_curves(products) -> dict[str, list[float]]:
    curves = {}
    for index in range(len(SETTINGS)):
        fused = trainer(tiny_model(), products=products)
        admit(fused, mixed_job(index))
        curves |= run_steps(fused, STEPS)
    assert all(len(curve) == STEPS for curve in curves.values())
    return curves


def worst_relative(curve: list[float], other: list[float]) -> float:
    left, right = np.asarray(curve), np.asarray(other)
    return float(np.max(np.abs(left - right) / np.abs(right)))


@pytest.mark.parametrize("jobs", [2, 8])
def test_each_fused_curve_equals_its_solo_run(jobs, solo_curves, products):
    fused = trainer(tiny_model(), products=products)
    for index in range(jobs):
        admit(fused, mixed_job(index))
    curves = run_steps(fused, STEPS)
    worst = {name: worst_relative(curve, solo_curves[name]) for name, curve in curves.items()}
    assert len(worst) == jobs
    assert max(worst.values()) <= 1e-5, worst
    assert all(np.mean(curve[-5:]) < np.mean(curve[:5]) for curve in curves.values())


@pytest.mark.parametrize("index", [i for i, s in enumerate(SETTINGS) if "dropout" not in s])
def test_each_curve_equals_a_plain_peft_run(index, solo_curves):
    """Same initial adapter, same rows in the same order, stock PEFT, padding and AdamW.

    Without dropout, whose masks stock PEFT draws from one global generator.
    """
    job = mixed_job(index)
    assert worst_relative(solo_curves[job.job_id], peft_curve(job, STEPS)) <= 1e-4


def test_a_small_token_budget_changes_no_curve(solo_curves, products):
    fused = trainer(tiny_model(), token_budget=90, products=products)
    for index in range(5):
        admit(fused, mixed_job(index))
    for name, curve in run_steps(fused, 15).items():
        assert worst_relative(curve, solo_curves[name][:15]) <= 1e-5


def test_coming_and_going_at_random_steps_changes_nobody(solo_curves, products):
    dice = random.Random(5)
    fused = trainer(tiny_model(), products=products)
    curves: dict[str, list[float]] = {f"job-{index}": [] for index in range(5)}
    waiting: dict[str, tuple[TrainingJob, dict[str, torch.Tensor] | None]] = {
        f"job-{index}": (mixed_job(index), None) for index in range(5)
    }
    moves = 0
    while any(len(curve) < 60 for curve in curves.values()):
        name = dice.choice(list(curves))
        if dice.random() < 0.3 and len(curves[name]) < 60:
            moves += 1
            if name in waiting:
                job, values = waiting.pop(name)
                if values is None:
                    admit(fused, job)
                else:
                    fused.add(job, values)
            else:
                kept = {n: v.clone() for n, v, _ in fused.model.tensors(name)}
                job = fused.remove(name)
                # as a checkpoint would: the step in the making is begun again
                job.batch = None
                waiting[name] = (job, kept)
        for result in fused.round():
            assert isinstance(result, StepResult), result
            curves[result.job_id].append(result.loss)
    assert moves > 30
    for name, curve in curves.items():
        assert worst_relative(curve[:60], solo_curves[name][:60]) <= 1e-5


def test_changing_one_jobs_rows_leaves_every_bit_of_the_others(products):
    def run(seed: int) -> dict[str, list[torch.Tensor]]:
        fused = trainer(tiny_model(), products=products)
        for index in range(5):
            rows = random_examples(12, seed=100 + index, shortest=16, longest=16)
            if index == 2 and seed:
                rows = random_examples(12, seed=seed, shortest=16, longest=16)
            job = training_job(
                f"job-{index}", rows, adapter={"dropout": 0.1 * index}, training={"epochs": 4}
            )
            admit(fused, job)
        run_steps(fused, 12)
        return {
            name: [value.clone() for _, value, _ in fused.model.tensors(name)]
            for name in fused.jobs
        }

    before, after = run(0), run(999)
    for name, values in before.items():
        same = all(torch.equal(old, new) for old, new in zip(values, after[name], strict=True))
        assert same is (name != "job-2"), name


def peft_curve(job: TrainingJob, steps: int) -> list[float]:
    """The job trained by stock ``peft`` and ``torch`` alone."""
    spec = job.spec
    start = trainer(tiny_model()).model.draw_initial_values(spec.adapter, seed=spec.training.seed)
    model = tiny_model()
    targets = spec.adapter.target_modules or (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    model = get_peft_model(
        model,
        LoraConfig(
            r=spec.adapter.rank,
            lora_alpha=int(spec.adapter.alpha),
            target_modules=list(targets),
            task_type="CAUSAL_LM",
        ),
    )
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, value in start.items():
            layout = value.T if name.endswith("lora_B") else value
            parameters[f"base_model.model.{name}.default.weight"].copy_(layout)
    training = spec.training
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=training.learning_rate, weight_decay=training.weight_decay
    )
    schedule = LambdaLR(
        optimizer,
        lambda step: compute_learning_rate(
            schedule=training.schedule,
            base_rate=1.0,
            step=step,
            total=job.total_steps,
            warmup=job.warmup_steps,
        ),
    )
    model.train()
    losses = []
    for step in range(steps):
        rows = [job.data.train[row].sequences[0] for row in job.batch_rows(step)]
        longest = max(len(row) for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        mask, labels = ids.clone(), torch.full_like(ids, -100)
        for at, row in enumerate(rows):
            tokens = torch.from_numpy(row.tokens)
            ids[at, : len(row)], mask[at, : len(row)] = tokens, 1
            labels[at, : len(row)] = torch.where(torch.from_numpy(row.weights) > 0, tokens, -100)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        if training.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters.values(), training.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
