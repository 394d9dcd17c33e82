"""``reproduce merging``: files, report, and answers to mistakes."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.__main__ import main
from scheduler.experiments.merging import reproduce
from scheduler.experiments.merging.experiments import QUICK, list_points

pytestmark = pytest.mark.nightly

TINY = replace(
    QUICK, jobs=12, seeds=2, swept_jobs=8, loads=(2.0,), switches_s=(20.0, 70.0), shares=(1.0,),
    noises=(0.4,), solver_jobs=(8,), all_pairs_jobs=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("merging")
    trace = out / "short.csv"
    rows = "".join(f"{60 * i},{100 + 400 * i},{1 + i % 3}\n" for i in range(15))
    trace.write_text(f"submit_s,duration_s,gpus\n{rows}")
    reproduce.reproduce(out, TINY, [trace], processes=1)
    return out


def test_every_run_stands_in_the_table(folder: Path) -> None:
    with (folder / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(list_points(TINY, [folder / "short.csv"]))
    assert all(row["finished"] == row["jobs"] for row in rows)
    assert {row["figure"] for row in rows} == {
        "policies paper", "policies measured", "noise paper", "noise measured", "modes paper",
        "modes measured", "switches", "related", "related, no repeats", "datasets", "traces",
    }  # fmt: skip


def test_the_report_puts_the_papers_figures_beside_ours(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "| figure | paper | paper's world | measured world |" in text
    assert re.search(r"\| without the task merger, times \| 1.3 to 1.72 \| [\d.]+ ± [\d.]+ ", text)
    assert "read literally no solution; read kindly an objective of 0 with 6 of 6 jobs" in text
    for part in ("What does not reproduce", "Where merging is not shown to win", "short"):
        assert part in text
    assert "nan" not in text


def test_every_picture_of_the_report_is_there_in_both_formats(folder: Path) -> None:
    names = re.findall(r"!\[[^]]*\]\((\w+)\.svg\)", (folder / "report.md").read_text())
    assert sorted(names) == sorted(
        ["jct", "makespan", "related", "related_no_repeats", "switches", "solver"]
    )
    for name in names:
        assert (folder / f"{name}.svg").stat().st_size > 5000
        assert (folder / f"{name}.png").stat().st_size > 5000


def test_the_solver_is_timed_on_every_form(folder: Path) -> None:
    with (folder / "solver.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["form"], row["fresh"]) for row in rows} == {
        ("chosen", "1.0"), ("chosen", "0.04"), ("repaired", "1.0"), ("repaired", "0.04"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--jobs", "0"], "--jobs must be at least 1"), (["--trace", "absent.csv"], "cannot be read")],
)
def test_mistakes_are_answered_with_a_line_and_status_two(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "merging", "--out", str(out), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
