"""``python -m scheduler reproduce auction`` from end to end, on very small days."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.simulator.auction import experiments
from scheduler.simulator.auction.command import main, reproduce
from scheduler.simulator.auction.experiments import FIGURES, NAMES, TINY
from scheduler.simulator.auction.scenario import Scenario, trace_profile
from scheduler.simulator.traces import read_trace


def a_trace(folder: Path) -> Path:
    """Write three days, a submission a minute in the first half of each."""
    path = folder / "halves.csv"
    rows = [f"{day * 86_400 + m * 60},100,1" for day in range(3) for m in range(720)]
    path.write_text("submit_s,duration_s,gpus\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_every_figure_is_run_for_every_policy_and_written(tmp_path: Path) -> None:
    found = reproduce(tmp_path, TINY, [read_trace(a_trace(tmp_path))], workers=1)
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
    scenario = point.setting.scenario
    assert scenario.day(3) == scenario.day(3)
    assert scenario.day(3) != scenario.day(4)
    assert point.setting.history(3)[0] != scenario.day(3)


def test_without_traces_that_figure_is_left_out() -> None:
    assert "traces" not in {p.figure for p in experiments.points(TINY, [])}


def test_a_day_of_a_trace_keeps_its_shape(tmp_path: Path) -> None:
    profile = trace_profile(read_trace(a_trace(tmp_path)), seed=0)
    assert profile == (10.0,) * 72 + (0.0,) * 72
    day = replace(Scenario("x", bids_per_slot=20.0), shape="trace", profile=profile).day(0)
    assert max(task.arrival_slot for task in day) < 73
    assert len(day) == pytest.approx(20 * 144, rel=0.1)


@pytest.mark.parametrize("way", ["uniform", "lognormal", "tight", "loose"])
def test_every_task_could_meet_its_deadline_unless_the_day_ends(way: str) -> None:
    scenario = Scenario("x", bids_per_slot=5.0, deadlines=way)  # type: ignore[arg-type]
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
    assert main(["--out", out, "--workers", "0"]) == 2
    assert "--workers must be at least 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
