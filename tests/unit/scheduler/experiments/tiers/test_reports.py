"""Measures, command lines and the written report."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.__main__ import main
from scheduler.experiments.tiers import experiments, reproduce
from scheduler.experiments.tiers.measures import Interval, difference, interval, relative
from scheduler.experiments.tiers.report import verdict
from scheduler.experiments.tiers.run import simulate
from scheduler.experiments.tiers.workload import calibrated_burst, seren_like
from scheduler.tiers.rules import TierRules

REPRODUCTION = Path(__file__).parents[5] / "docs" / "reproduction" / "tiers"


def test_an_interval_is_students() -> None:
    # t(0.975, 4) = 2.776445; spread sqrt(2.5 / 5).
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.776445 * 0.5**0.5, rel=1e-6)
    with pytest.raises(ValueError, match="two seeds"):
        interval([1.0])


def test_differences_are_paired_and_refuse_strangers() -> None:
    one = [
        simulate(workload=calibrated_burst(seed=s, jobs=20), policy="improved", seed=s, cap=None)
        for s in (0, 1)
    ]
    assert difference(one, one, "cost_usd") == Interval(0.0, 0.0)
    with pytest.raises(ValueError, match="share seed"):
        difference(one, list(reversed(one)), "cost_usd")


def test_a_relative_difference_weighs_every_seed_alike() -> None:
    small, large = (
        simulate(workload=calibrated_burst(seed=s, jobs=20), policy="improved", seed=s, cap=None)
        for s in (0, 1)
    )
    base = [replace(small, mean_jct_s=10.0), replace(large, mean_jct_s=1000.0)]
    runs = [replace(small, mean_jct_s=9.0), replace(large, mean_jct_s=1100.0)]
    assert relative(runs, base, "mean_jct_s").mean == pytest.approx(0.0, abs=1e-12)
    assert difference(runs, base, "mean_jct_s").mean == pytest.approx(49.5)


def test_a_verdict_says_both_only_when_both_intervals_lie_below_zero() -> None:
    low, open_, high = Interval(-2.0, 1.0), Interval(-1.0, 2.0), Interval(2.0, 1.0)
    assert verdict(low, low, low) == "both"
    assert verdict(low, open_, low) == "JCT lower, cost not settled"
    assert verdict(high, low, high) == "JCT HIGHER, cost lower, more misses"


def test_simulate_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "tiers", "--policy", "improved", "--jobs", "50", "--cap", "10"]
    assert main([*arguments, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0])
    assert (found["policy"], found["jobs"], found["cap"]) == ("improved", 50, 10)
    cost = found["cost_usd"]
    parts = cost["serverless"] + cost["marketplace"] + cost["conventional"]
    assert cost["total"] == pytest.approx(parts)
    assert found["jct_s"]["p50"] <= found["jct_s"]["mean"] <= found["jct_s"]["p95"]
    assert main(arguments) == 0
    assert "never left it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "absent.csv"], "absent.csv: cannot be read"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--cap", "0"], "cap must be at least 1"),
        (["--policy", "sjf-np-static"], "give --cap"),
        (["--vanish", "2"], "vanish is a chance below 1"),
        (["--jobs", "99999999999"], "--jobs must be at least 1 and at most 10,000,000"),
        (["--seed", "-1"], "--seed must not be below zero"),
        (["--jobs", "5", "--mean-life-h", "0.001"], "of 5 jobs are done: workers fail sooner"),
    ],
)
def test_simulate_answers_mistakes_with_a_line_and_status_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "tiers", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("words", [["simulate"], ["simulate", "x"], ["reproduce", "x"]])
def test_unknown_experiments_are_answered_with_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "usage: python -m scheduler" in capsys.readouterr().err


@pytest.mark.nightly
def test_reproduce_writes_tables_plots_and_a_report(tmp_path: Path) -> None:
    burst = experiments.settings([])[0]
    small = replace(burst, workload=lambda seed: calibrated_burst(seed=seed, jobs=60))
    reproduce.reproduce(tmp_path, [small], 2)
    names = {path.name for path in tmp_path.iterdir()}
    plots = ("jct_limited", "jct_unlimited", "waiting", "cost", "dynamics", "pareto", "quality")
    assert {f"{name}.{kind}" for name in plots for kind in ("png", "svg")} <= names
    assert {"threshold_sensitivity.png", "report.md", "sweep.csv", "dynamics.csv"} <= names
    with (tmp_path / "quality.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["workload"], row["cap"], row["seeds"]) for row in rows] == [
        ("burst", "30", "2"),
        ("burst", "unlimited", "2"),
    ]
    with (tmp_path / "baselines.csv").open(newline="") as file:
        held = [(row["cap"], row["against"]) for row in csv.DictReader(file)]
    assert held == [
        (cap, base) for cap in ("30", "unlimited") for base in ("corrected", "fixed-600", "sjf-np")
    ]
    text = (tmp_path / "report.md").read_text()
    assert text.count("| sjf-np | ") == text.count("| fixed-600 | ") + 1 == 5
    pictures = set(re.findall(r"\]\((\S+\.svg)\)", text))
    assert pictures == {name for name in names if name.endswith(".svg")}
    assert "## What does not reproduce" in text
    assert "| total cost, 30 GPUs, $ * | 236.69 |" in text
    assert len(re.findall("^The 95th percentile .* with 95 % confidence in ", text, re.M)) == 1


def test_the_committed_report_names_every_row_whose_slowest_jobs_are_slower() -> None:
    with (REPRODUCTION / "quality.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    slower = [
        row["workload"]
        for row in rows
        if float(row["p95_jct_s_difference"]) > float(row["p95_jct_s_ci95"])
    ]
    text = (REPRODUCTION / "report.md").read_text()
    [line] = re.findall("^The 95th percentile .*$", text, re.M)
    count = f"{len(slower)} of {len(rows)} rows: " if slower else f"none of {len(rows)} rows."
    assert f" in {count}" in line
    assert [name for name in slower if name not in line] == []


@pytest.mark.nightly
def test_gangs_are_held_against_rules_that_can_run_them_under_the_cap() -> None:
    [gangs] = [row for row in experiments.settings([]) if row.name.startswith("gangs")]
    small = replace(gangs, workload=lambda seed: seren_like(seed=seed, jobs=200))
    [runs] = experiments.quality([small], 1, lambda items, _: items).values()
    assert {name for name, cap in runs if cap == experiments.LIMITED} == {
        "improved",
        "corrected",
        "fixed-600",
    }


def test_a_trace_is_reported_in_windows_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    rows = [f"{n * 10},{60 + n % 600}" for n in range(experiments.WINDOW_JOBS + 1)]
    path.write_text("submit_s,duration_s\n" + "\n".join(rows))
    windows, _, slow, whole = experiments.settings([path])[-4:]
    assert (windows.name, whole.name) == ("trace long", "trace long, whole")
    assert (slow.name, slow.rules) == ("trace long, moves take 280 s", TierRules())
    assert len(windows.workload(0)) == experiments.WINDOW_JOBS
    assert len(whole.workload(0)) == len(whole.workload(1)) == len(rows)
    assert whole.most_seeds == experiments.WHOLE_SEEDS


def test_reproduce_refuses_a_trace_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        ["reproduce", "tiers", "--out", str(tmp_path / "out"), "--trace", str(tmp_path / "no.csv")]
    )
    assert status == 2
    assert "no.csv: cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
