"""Agreement with files that independent implementations wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.__main__ import main
from scheduler.experiments.auction.interchange import replay, solve

DATA = Path(__file__).parents[4] / "data" / "auction"
TOLERANCE = 1e-8


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


SOLVE_FILES = sorted(p for p in DATA.glob("*.json") if not p.name.startswith("seq_"))
REPLAY_FILES = sorted(DATA.glob("seq_*.json"))


def test_the_example_files_are_all_there() -> None:
    assert len(SOLVE_FILES) == 6
    assert len(REPLAY_FILES) == 2


@pytest.mark.parametrize("path", SOLVE_FILES, ids=lambda p: p.stem)
def test_solve_agrees_with_the_example(path: Path) -> None:
    expected = _read(path)
    found = solve(expected)
    assert len(found["per_vendor"]) == len(expected["per_vendor"])
    for ours, theirs in zip(found["per_vendor"], expected["per_vendor"], strict=True):
        assert (ours["vendor"], ours["h"], ours["feasible"]) == (
            theirs["vendor"],
            theirs["h"],
            theirs["feasible"],
        )
        assert ours["q"] == theirs["q"]
        if theirs["feasible"]:
            assert ours["obj"] == pytest.approx(theirs["obj"], abs=TOLERANCE, rel=0)
            assert ours["cells"] == theirs["cells"]
    assert found["best_vendor"] == expected["best_vendor"]
    if expected["best_F"] is None:
        assert found["best_F"] is None
    else:
        assert found["best_F"] == pytest.approx(expected["best_F"], abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("policy", ["printed", "residual"])
@pytest.mark.parametrize("path", REPLAY_FILES, ids=lambda p: p.stem)
def test_replay_agrees_with_the_example(path: Path, policy: str) -> None:
    data = _read(path)
    expected = data["expected"][f"{policy}_critical"]
    found = replay(data, policy=policy)
    assert len(found["log"]) == len(expected["log"])
    for ours, theirs in zip(found["log"], expected["log"], strict=True):
        assert {name: ours[name] for name in ("id", "admit", "reason", "vendor", "cells")} == {
            name: theirs[name] for name in ("id", "admit", "reason", "vendor", "cells")
        }
        assert ours["payment"] == pytest.approx(theirs["payment"], abs=TOLERANCE, rel=0)
        if theirs["F"] is None:
            assert ours["F"] is None
        else:
            assert ours["F"] == pytest.approx(theirs["F"], abs=TOLERANCE, rel=0)
    assert found["welfare"] == pytest.approx(expected["welfare"], abs=TOLERANCE, rel=0)


def test_replay_gives_a_busy_vendor_no_second_task_at_once() -> None:
    task = {"a": 0, "d": 3, "M": 1, "r": 1, "b": 9, "s": [1], "e": [[0, 0, 0, 0]], "f": 1}
    offers = [[1.0, 1, 2], [5.0, 1, 1]]
    tasks = [{**task, "id": name, "vendors": offers} for name in ("first", "second", "third")]
    data = {"K": 1, "T": 4, "Cp": [3], "Cm": [9], "rb": 0, "alpha": 1, "beta": 1, "tasks": tasks}
    found = replay({**data, "Cv": [2, 1]}, policy="residual")
    assert [(line["vendor"], line["cells"]) for line in found["log"]] == [
        (0, [[1, 0]]),
        (0, [[2, 0]]),
        (0, [[3, 0]]),
    ]
    short = [{**line, "d": 1} for line in tasks]
    found = replay({**data, "Cv": [2, 1], "tasks": short}, policy="residual")
    assert [line["vendor"] for line in found["log"]] == [0, 1, None]


def test_the_command_line_prints_what_the_functions_return(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = DATA / "small_00.json"
    assert main(["auction", "solve", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == solve(_read(path))
    path = DATA / "seq_00.json"
    assert main(["auction", "replay", str(path), "--policy", "printed"]) == 0
    assert json.loads(capsys.readouterr().out) == replay(_read(path), policy="printed")


def test_a_file_that_is_not_there_is_named_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["auction", "solve", str(tmp_path / "gone.json")]) == 2
    said = capsys.readouterr()
    assert "gone.json" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("command", "change", "said"),
    [
        (["solve"], {"K": 10**12}, "must have K = 1000000000000 rows"),
        (["solve"], {"lam": [[1.0], [1.0, 2.0]]}, "inhomogeneous"),
        (["solve"], {"task": {"id": "t"}}, "field 'a' is missing"),
        (["replay", "--policy", "residual"], {"tasks": [7]}, "not subscriptable"),
        (["replay", "--policy", "residual"], {"scale": [2]}, "no attribute"),
        (
            ["replay", "--policy", "residual"],
            {"scale": {"cb": 2, "cs": 1, "cr": 1}},
            "scale must be 1",
        ),
        (["replay", "--policy", "residual"], {"alpha": -1.0}, "alpha is -1.0"),
        (["replay", "--policy", "residual"], {"T": 10**12}, "horizon_slots must be between"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(
    tmp_path: Path,
    command: list[str],
    change: dict[str, Any],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "small_00.json" if command[0] == "solve" else "seq_00.json"
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(_read(DATA / name) | change))
    assert main(["auction", command[0], str(path), *command[1:]]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.startswith(str(path))
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_file_nested_beyond_reading_is_no_failed_verification(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    for command in (["verify"], ["auction", "solve"], ["auction", "replay", "--policy=residual"]):
        assert main([*command, str(path)]) == 2
