"""``python -m scheduler reproduce auction`` from end to end, on very small days."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.experiments.auction import experiments
from scheduler.experiments.auction.days import BOUND, day_run
from scheduler.experiments.auction.experiments import FIGURES, FULL, NAMES, TINY, Point
from scheduler.experiments.auction.quality import like
from scheduler.experiments.auction.reproduce import PROGRESS, main, reproduce
from scheduler.experiments.auction.scenario import Scenario, trace_days
from scheduler.experiments.tiers.traces import read_trace


def a_trace(folder: Path) -> Path:
    """Write three days, a submission a minute in the first half of each."""
    path = folder / "halves.csv"
    rows = [f"{day * 86_400 + m * 60},100,1" for day in range(3) for m in range(720)]
    path.write_text("submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.nightly
def test_every_figure_is_run_for_every_policy_and_written(tmp_path: Path) -> None:
    found = reproduce(tmp_path, TINY, [read_trace(a_trace(tmp_path))], jobs=1)
    assert found.missing == 0
    assert set(found.days) == set(FIGURES)
    with (tmp_path / "days.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(NAMES) * sum(len(table) for table in found.days.values())
    for row in rows:
        assert 0.0 <= float(row["share"]) <= 1.0 + 1e-9
    assert found.profitable[0] == 0
    assert found.profitable[1] > 0
    assert found.won[0] > 0
    assert found.won[1] == 0
    assert found.ratios[0].optimum > 0
    assert all(ratio >= 1 - 1e-6 for ratio in found.ratios[0].ratios.values())
    plots = {*FIGURES, "running_time", "truthfulness", "rationality", "competitive"}
    for name in plots:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for title, _ in FIGURES.values():
        assert f"## {title}" in text
    assert "Misreports that paid: 0 under the critical payment" in text
    assert "## What reproduces and what does not" in text
    assert "Run without `--quick`" in text


def test_one_seed_gives_one_day() -> None:
    point = next(p for p in experiments.points(TINY, []) if p.figure == "dynamics")
    setting = point.setting(3)
    assert setting.scenario.day(3) == setting.scenario.day(3)
    assert setting.scenario.day(3) != setting.scenario.day(4)
    assert setting.history(3)[0] != setting.scenario.day(3)


def test_without_traces_that_figure_is_left_out() -> None:
    assert "traces" not in {p.figure for p in experiments.points(TINY, [])}


def test_a_day_of_a_trace_keeps_its_shape_and_follows_the_days_before_it(tmp_path: Path) -> None:
    profile, before = trace_days(read_trace(a_trace(tmp_path)), seed=0)
    assert profile == (10.0,) * 72 + (0.0,) * 72
    assert before in ([profile], [profile, profile])
    day = replace(Scenario("x", bids_per_slot=20.0), shape="trace", profile=profile).day(0)
    assert max(task.arrival_slot for task in day) < 73
    assert len(day) == pytest.approx(20 * 144, rel=0.1)


def test_past_days_of_a_trace_are_as_busy_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "growing.csv"
    rows = [f"{day * 86_400 + n * 600},1" for day in (1, 2) for n in range(144) for _ in range(day)]
    path.write_text("submit_s,duration_s\n0,1\n" + "\n".join(rows) + "\n", encoding="utf-8")
    setting = experiments.trace_setting(
        read_trace(path), Scenario("traces", nodes=4, bids_per_slot=10.0), 0
    )
    assert setting.scenario.bids_per_slot == 10.0
    assert [past.bids_per_slot for past in setting.past] == [5.0]
    assert len(setting.history(0)) == 1


ONE = [Point("dynamics", "30", (like(Scenario("d", slots=12, nodes=2, bids_per_slot=1.2)),))]


@pytest.mark.nightly
def test_a_run_that_was_stopped_goes_on_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    monkeypatch.setattr(experiments, "points", lambda *_: ONE)
    first = reproduce(whole, TINY, [], jobs=1)
    lines = (whole / PROGRESS).read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 1 + 7 + 1 + 2
    # Killed after four runs, in the middle of writing the fifth.
    stopped.mkdir()
    (stopped / PROGRESS).write_text("".join(lines[:5]) + lines[5][:20], encoding="utf-8")
    part = reproduce(stopped, TINY, [], jobs=1, report_only=True)
    assert part.missing == 6
    assert "**Incomplete: 6 runs are missing." in (stopped / "report.md").read_text("utf-8")
    rest = reproduce(stopped, TINY, [], jobs=1)
    assert rest.missing == 0
    again = (stopped / PROGRESS).read_text(encoding="utf-8").splitlines(keepends=True)
    assert again[:5] == lines[:5]
    assert len(again) == len(lines)
    ours, theirs = first.days["dynamics"]["30"][0], rest.days["dynamics"]["30"][0]
    assert ours.bound == theirs.bound
    for name in NAMES:
        assert ours.results[name].welfare == theirs.results[name].welfare


def test_equal_days_of_different_figures_are_run_once() -> None:
    plan = [p for p in experiments.points(FULL, []) if p.figure != "quality"]
    same = [p.setting(0) for p in plan if (p.figure, p.x) in SHARED]
    assert len(same) == 4
    for name in ("lagrangian", "titan", BOUND):
        assert len({day_run(name, setting, 0) for setting in same}) == 1
    # A past of another kind makes another day for whom looks at it, and for nobody else.
    evening = [p.setting(0) for p in experiments.points(FULL, []) if "evening rush" in p.x]
    assert len({day_run("lagrangian", setting, 0) for setting in evening}) == 2
    assert len({day_run("eft", setting, 0) for setting in evening}) == 1


SHARED = {("scale", "100"), ("dynamics", "50"), ("capacity", "mixed"), ("deadlines", "uniform")}


@pytest.mark.parametrize("way", ["uniform", "lognormal", "tight", "loose"])
def test_every_task_could_meet_its_deadline_unless_the_day_ends(way: str) -> None:
    scenario = Scenario("x", bids_per_slot=5.0, deadlines=way)
    for task in scenario.day(1):
        needed = int(np.ceil(task.compute_demand / task.rates["a100"]))
        window = task.deadline_slot - task.arrival_slot + 1
        assert window >= needed or task.deadline_slot == scenario.slots - 1
        assert 5_000 <= task.compute_demand <= 100_000


def test_a_trace_that_is_not_there_or_too_short_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["--out", out, "--trace", str(tmp_path / "none.csv")]) == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err
    short = tmp_path / "short.csv"
    short.write_text("submit_s,duration_s\n0,1\n", encoding="utf-8")
    assert main(["--out", out, "--trace", str(short)]) == 2
    assert "take a longer trace" in capsys.readouterr().err
    assert main(["--out", out, "--jobs", "0"]) == 2
    assert "--jobs must be at least 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
