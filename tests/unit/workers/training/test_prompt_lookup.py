"""Lookups on a node: halving over known prompts, by the losses of the job's own rows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from scheduler.experiments.prompts.lookup import HalvingRules, look_up_by_halving
from tests.unit.workers.training_builders import (
    WIDTH,
    RecordingSink,
    byte_tokenizer,
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
from workers.protocol.adapter_names import PROMPT
from workers.protocol.job_spec import AdapterKind, BlobRef, PromptLookup
from workers.runtime.node_runtime import NodeRuntime
from workers.training import prompt_lookup
from workers.training.packing import Pack
from workers.training.prompt_lookup import LookupRun, find_longest_run, read_candidates

SOFT = {"kind": AdapterKind.SOFT_PROMPT, "virtual_tokens": 4}


@pytest.fixture(scope="module")
def tuned():
    """A model, a job, the prompt tuned on its rows, and others drawn at random."""
    fused = trainer(tiny_model())
    job = training_job(
        "a", random_examples(24, seed=3), adapter=SOFT, training={"epochs": 8, "learning_rate": 0.2}
    )
    own = fused.model.draw_initial_values(job.spec.adapter, seed=1)
    fused.add(job, own)
    run_steps(fused, 48)
    [best] = [values.clone() for name, values, _ in fused.model.tensors("a") if name == PROMPT]
    fused.remove("a")
    generator = torch.Generator().manual_seed(5)
    others = {f"p{i}": torch.randn(4, WIDTH, generator=generator) for i in range(70)}
    return (
        fused.model,
        training_job("a", random_examples(24, seed=3), adapter=SOFT),
        {
            "own": own[PROMPT],
            "best": best,
            "others": others,
        },
    )


def look_up(model, job, candidates, own, *, budget_s=60.0, token_budget=512, clock=None):
    run = LookupRun(
        job,
        candidates=candidates,
        own=own,
        token_budget=token_budget,
        budget_s=budget_s,
        **({} if clock is None else {"clock": clock}),
    )
    figures = None
    while figures is None:
        figures = run.score_pack(model)
    return run, figures


def test_a_lookup_finds_the_prompt_that_was_tuned_on_such_rows(tuned):
    model, job, found = tuned
    candidates = found["others"] | {"tuned": found["best"]}
    run, figures = look_up(model, job, candidates, found["own"])
    assert figures.prompt_id == "tuned"
    assert figures.score < figures.own_score
    torch.testing.assert_close(run.get_prompt(figures), found["best"])
    # 72 on one row, the best half and perhaps the job's own on three more, the best 15 on twelve.
    assert figures.candidates == 72
    assert figures.losses in [72 + 3 * a + 12 * b for a in (36, 37) for b in (15, 16)]
    assert model._loose == {}


def test_a_lookup_on_a_node_finds_what_the_schedulers_halving_finds(tuned):
    model, job, found = tuned
    names = [f"p{i}" for i in range(20)]
    candidates = {name: found["others"][name] for name in names}
    table = np.empty((20, 16))
    for place, name in enumerate(names):
        run = LookupRun(job, candidates={}, own=candidates[name], token_budget=4096, budget_s=60.0)
        while run.score_pack(model) is None:
            pass
        table[place] = list(run._losses[""].values())
    expected = look_up_by_halving(
        np.arange(20), lambda some, rows: table[some][:, list(rows)], rules=HalvingRules()
    )
    _, figures = look_up(model, job, candidates, torch.full((4, WIDTH), 40.0))
    assert figures.prompt_id == names[expected.candidate]
    assert figures.score == pytest.approx(expected.score, rel=1e-4)


@pytest.mark.parametrize(
    "poisoned",
    [
        torch.full((4, WIDTH), math.nan),
        torch.full((4, WIDTH), math.inf),
        torch.full((4, WIDTH), 1e30),
        torch.zeros(5, WIDTH),
        torch.zeros(4, WIDTH + 1),
    ],
    ids=["nan", "infinite", "huge", "longer", "wider"],
)
def test_a_prompt_that_no_job_can_start_from_is_never_found(tuned, poisoned):
    model, job, found = tuned
    _, figures = look_up(model, job, {"bad": poisoned}, found["own"])
    assert figures.prompt_id == ""
    assert figures.score == figures.own_score
    assert math.isfinite(figures.score)


def test_a_lookup_without_time_takes_the_jobs_own_prompt(tuned):
    model, job, found = tuned
    _, figures = look_up(model, job, found["others"], found["own"], budget_s=0.0)
    assert (figures.prompt_id, figures.losses) == ("", 0)


def test_a_lookup_that_runs_out_of_time_takes_the_best_so_far(tuned):
    model, job, found = tuned
    ticks = itertools.count()
    candidates = {"tuned": found["best"]} | found["others"]
    _, figures = look_up(
        model,
        job,
        candidates,
        found["own"],
        budget_s=4.5,
        token_budget=64,
        clock=lambda: float(next(ticks)),
    )
    assert 0 < figures.losses < 72
    assert figures.score < figures.own_score


def test_a_job_starts_from_the_prompt_found_and_says_what_it_gained(tmp_path, tuned, monkeypatch):
    base = save_tiny_base(tmp_path / "base")
    data = write_jsonl(tmp_path / "rows.jsonl", completion_rows(24))
    prompts = tmp_path / "prompts.safetensors"
    words = byte_tokenizer()("What colour?", add_special_tokens=False).input_ids[:4]
    table = tiny_model().get_input_embeddings().weight.detach()
    save_file({"a": table[words].clone(), "b": tuned[2]["best"]}, prompts)
    spec = job_spec(
        "a",
        base,
        data,
        adapter=SOFT | {"looks_up": True, "init_text": "colour is blue"},
        training={"epochs": 1, "learning_rate": 1e-6},
        lookup=PromptLookup(BlobRef("/p", "0" * 64, 1), 30.0),
    )
    runtime, sink = NodeRuntime(device="cpu", cache_dir=tmp_path / "cache"), RecordingSink()
    plain, packs = prompt_lookup.build_pack, list[Pack]()

    def build(shares, **settings):
        packs.append(plain(shares, **settings))
        return packs[-1]

    monkeypatch.setattr(prompt_lookup, "build_pack", build)
    try:
        # As where memory leaves no more.
        runtime.resident(base).trainer.token_budget = 64
        runtime.attach(
            job=spec, data_path=data, validation_path=None, prompts_path=prompts, sink=sink
        )
        summary = sink.wait()
    finally:
        runtime.close()
    assert sink.outcome == "finished", sink.reason
    assert summary.lookup is not None
    assert summary.lookup.candidates == 3
    assert max(pack.tokens for pack in packs) <= 64
    assert summary.lookup.score <= summary.lookup.own_score
    started = {"a": table[words], "b": tuned[2]["best"]}.get(summary.lookup.prompt_id)
    if started is None:
        own = byte_tokenizer()("colour is blue", add_special_tokens=False).input_ids[:4]
        started = table[own]
        assert summary.copied_tokens == 4
    written = read_candidates(sink.adapter_dir / "adapter_model.safetensors")[PROMPT]
    torch.testing.assert_close(written, started, atol=1e-4, rtol=0)


def test_a_file_that_is_no_prompts_is_no_candidates(tmp_path):
    path = tmp_path / "prompts.safetensors"
    path.write_bytes(b"nothing")
    assert read_candidates(path) == {}
    assert read_candidates(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    ("spelt", "row", "length"),
    [
        ([5, 6, 7], [1, 5, 6, 7, 2], 3),
        ([5, -1, 7], [5, 6, 7], 1),
        ([-1, -1], [1, 2], 0),
        ([9, 5, 6], [5, 6, 9], 2),
        ([5, 5, 6], [5, 6], 2),
        ([3], [], 0),
    ],
)
def test_the_longest_run_of_a_row_that_a_prompt_spells_out(spelt, row, length):
    assert find_longest_run(spelt, [np.asarray(row, dtype=np.int64)]) == length
