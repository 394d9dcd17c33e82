"""The benchmark trains the same tokens on both sides."""

from __future__ import annotations

import json

import pytest
import torch

from workers.__main__ import COMMANDS, main
from workers.bench import __main__ as bench
from workers.bench.cases import CPU_CASES, GPU_CASES, BenchCase, build_base_config
from workers.bench.contestants import Fused, SequentialPeft, build_random_base
from workers.bench.gpu import mfu_4p
from workers.node import calibrate
from workers.node.self_test import SpeedCase
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.node_facts import NodeFacts
from workers.protocol.wire import from_json

CPU = torch.device("cpu")


@pytest.mark.parametrize("packed", [False, True])
def test_both_contestants_train_the_same_tokens_and_see_the_same_first_loss(packed):
    case = BenchCase("x", "tiny-llama", jobs=2, batch=3, length=12, ragged=True)
    fused = Fused(case, build_random_base(case.base, CPU, torch.float32), 2)
    peft = SequentialPeft(case, build_random_base(case.base, CPU, torch.float32), 2, packed=packed)
    ours = {name: job.batch_rows(0) for name, job in fused.trainer.jobs.items()}
    assert len(ours) == 2
    assert fused.step() == peft.step()
    first = next(iter(fused.trainer.jobs.values())).progress.first_train_loss
    inputs, _ = peft.batches[0][0]
    with torch.no_grad(), peft.model.disable_adapter():
        stock = peft.model(**inputs, use_cache=False).loss.item()
    # a fresh adapter changes nothing, so the bare base has the same loss
    assert first == pytest.approx(stock, rel=1e-5)


@pytest.mark.nightly
def test_the_command_prints_a_json_line_per_case(capsys, monkeypatch):
    case = BenchCase("smallest", "tiny-llama", jobs=2, batch=1, length=8)
    monkeypatch.setattr(bench, "CPU_CASES", (case,))
    assert bench.main(["cpu", "--repeats", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["case"] == "smallest"
    assert row["ratio"] > 0
    assert row["tokens_per_step"] == 16


@pytest.mark.nightly
def test_the_gpu_benchmark_runs_the_same_way_on_a_tiny_base(capsys):
    assert bench.main(["gpu", "--rehearse", "--repeats", "1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["jobs"] for row in rows] == [1, 3]
    for row in rows:
        ways = ("plain", "in_turn", "padded_peft", "packed_peft")
        tokens = [row[f"{way}_tokens"] for way in ways]
        assert all(0 < count <= row["jobs"] * 48 for count in tokens)
        assert row["ragged"] or tokens == [32] * 4
        assert row["ratio"] > 0
        assert row["in_turn_ratio"] > 0


def test_a_case_that_fails_or_has_no_time_left_does_not_lose_the_others(capsys, monkeypatch):
    cases = (
        BenchCase("good", "tiny-llama", jobs=1, batch=1, length=8),
        BenchCase("too big", "tiny-llama", jobs=1, batch=1, length=8),
        BenchCase("good again", "tiny-llama", jobs=1, batch=1, length=8),
    )

    def measured(case):
        if case.name == "too big":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"case": case.name, "ratio": 2.0}

    assert bench.run(cases, "", float("inf"), measured) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["case"] for row in rows] == ["good", "too big", "good again"]
    assert [row.get("ratio") for row in rows] == [2.0, None, 2.0]
    assert rows[1]["error"] == "OutOfMemoryError: CUDA out of memory"
    assert bench.run(cases[:1], "", 0.0, measured) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "no time was left for it"


def test_utilisation_counts_four_flops_per_parameter_and_token():
    assert mfu_4p("NVIDIA H100 80GB HBM3", 8_000_000_000, 10_000) == pytest.approx(0.3236)
    assert mfu_4p("some other device", 1, 1) is None


def test_the_gpu_benchmark_without_a_gpu_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main(["gpu"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_every_case_names_a_base_that_can_be_made():
    for case in (*CPU_CASES, *GPU_CASES):
        assert build_base_config(case.base).num_hidden_layers > 0


def test_the_entrance_lists_its_commands_and_refuses_others(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)
    assert main(["fly"]) == 2
    assert "There is no command fly" in capsys.readouterr().err


def test_calibrate_prints_what_a_node_tells_the_market_of_itself(capsys, monkeypatch):
    monkeypatch.setattr(calibrate, "QUICK_CASES", (SpeedCase(2, 0.02, 1), SpeedCase(2, 0.02, 3)))
    assert calibrate.main(["--quick", "--device", "cpu", "--seconds", "0.01"]) == 0
    printed = capsys.readouterr()
    # the very message that joining sends, strictly read
    facts = from_json(NodeFacts, json.loads(printed.out))
    assert facts.protocol_version == PROTOCOL_VERSION
    assert (facts.device, facts.gpu_count) == ("cpu", 0)
    assert [(row.batch_size, row.sequence_length, row.jobs) for row in facts.speeds] == [
        (2, 10, 1),
        (2, 10, 3),
    ]
    for row in facts.speeds:
        assert row.base_model == "bundled:finetender-tiny"
        assert row.tokens_per_s == pytest.approx(10 * row.samples_per_s, rel=1e-3)
        assert min(row.samples_per_s, row.job_memory_gb, row.base_memory_gb) > 0
    assert "3 x batch 2 of 10 tokens" in printed.err


def test_calibrate_says_why_it_cannot_measure(capsys):
    assert calibrate.main(["--device", "cpu", "--base", "/nowhere"]) == 2
    assert "The base model '/nowhere' cannot be loaded" in capsys.readouterr().err
