"""``simulate prompts`` and ``reproduce prompts``: what they print and write."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.__main__ import main
from scheduler.experiments.prompts.experiments import WORKLOADS, PromptSize
from scheduler.experiments.prompts.policies import LANES
from scheduler.experiments.prompts.reproduce import reproduce
from scheduler.experiments.prompts.run import simulate
from scheduler.experiments.prompts.workload import WorkloadRules


def test_simulate_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "prompts", "--policy", "repaired", "--load", "low", "--seed", "7"]
    assert main([*arguments, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    found, run = json.loads(lines[0]), simulate(policy="repaired", load="low", seed=7)
    assert (found["policy"], found["load"], found["seed"], found["slo"]) == (
        "repaired",
        "low",
        7,
        1.0,
    )
    assert found["slo_violations"] == run.violations
    assert found["slo_violation_share"] == run.violations / 138
    assert found["cost_usd"] == run.cost_usd
    assert found["gpu_hours"] == {
        "warm": run.warm_gpu_h,
        "idle": run.idle_gpu_h,
        "cold": run.cold_gpu_h,
    }
    assert (found["lookups"], found["lookup_s"]) == (run.lookups, run.lookup_s)
    assert main(arguments) == 0
    assert f"${run.cost_usd:,.2f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "a seed must not be below zero"),
        (["--slo", "0"], "S must be above zero"),
        (["--slo", "nan"], "S must be above zero"),
        (["--gpus", "2"], "2 GPUs are too few"),
    ],
)
def test_simulate_answers_mistakes_with_a_line_and_status_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "prompts", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


@pytest.mark.nightly
def test_reproduce_writes_tables_plots_and_a_report(tmp_path: Path) -> None:
    reproduce(tmp_path, PromptSize(seeds=2, worlds=1, tasks=2, candidates=40, minutes=3))
    names = {path.name for path in tmp_path.iterdir()}
    plots = ("sweeps", "tradeoff", "errors", "lookups")
    assert names == {
        *(f"{name}.{kind}" for name in plots for kind in ("png", "svg")),
        *(f"{name}.csv" for name in ("sweeps", "ablations", "workloads", "unseen", "lookups")),
        "report.md",
    }
    with (tmp_path / "ablations.csv").open(encoding="utf-8") as file:
        rows = {row["policy"]: row for row in csv.DictReader(file)}
    assert set(rows) == set(LANES)
    workload = replace(WorkloadRules(), minutes=3)
    runs = [
        simulate(policy="chosen", load="medium", seed=seed, workload=workload) for seed in (0, 1)
    ]
    share = sum(run.violation_share for run in runs) / 2
    assert float(rows["chosen"]["violation_share"]) == pytest.approx(share)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert f"| chosen | {100 * share:.1f} ±" in report
    for heading in ("The paper's figures beside ours", "What does not reproduce", "Lookups"):
        assert f"## {heading}" in report
    assert all(f"| {name} |" in report for name in WORKLOADS)


def test_reproduce_answers_a_folder_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["reproduce", "prompts", "--out", str(tmp_path / "file")]) == 2
    assert "error:" in capsys.readouterr().err
