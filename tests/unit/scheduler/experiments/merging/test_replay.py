"""Measured starts as jobs of the market: what they are sold, and what their owners get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.__main__ import main
from scheduler.experiments.merging.replay import replay

#: Losses of a start that is where a cold run ends after one evaluation, and of one that never is.
GOOD, BAD = [0.28, 0.2, *[0.19] * 8], [0.3] * 10


def sold(target: str, losses: list[float], *, same: bool = True) -> Any:
    """A start that was sold its first four of 36 steps."""
    return {
        "form": "sold 4",
        "seed": 0,
        "sold": 4,
        "donor": target if same else "another task",
        "target": target,
        "same_task": same,
        "every": 4,
        "base_loss": 4.0,
        "donor_after": 0.25,
        "cold_losses": [4.0, *[1.0] * 8, 0.2],
        "losses": losses,
    }


def test_a_near_duplicate_is_sold_little_and_no_worse_than_a_cold_run() -> None:
    found = replay([sold("reply a", GOOD), sold("record b", GOOD)])["near_duplicates"]
    for of in (found["all"], found["held_out"]):
        # (4 x 0.1 + 4 / 36) / 5 = 0.1022 and a standard error of 0.04: six of 36 steps.
        assert of["price_cut"] == pytest.approx(1 - 6 / 36, abs=1e-4)
        assert of["after_royalty"] == pytest.approx(0.98 * (1 - 6 / 36), abs=1e-4)
        assert (of["begun_again"], of["house_adds"], of["as_good_as_cold"]) == (0, 0.0, 1.0)
        assert of["loss_over_cold"] == [1.0, 1.0, 1.0, 1.0]
    assert (found["all"]["jobs"], found["held_out"]["jobs"]) == (2, 1)


def test_a_start_that_never_is_at_its_target_is_run_again_and_delivers_the_cold_runs_loss() -> None:
    jobs = replay([sold("reply a", GOOD), sold("record b", BAD)])["near_duplicates"]
    of = jobs["held_out"]
    assert (of["begun_again"], of["loss_over_cold"]) == (1, [1.0, 1.0, 1.0, 1.0])
    assert of["house_adds"] == pytest.approx(2 - (1 - of["price_cut"]), abs=1e-4)
    # What it needed makes the other family's job cost more, and its own does not.
    assert jobs["all"]["price_cut"] < of["price_cut"]


def test_a_related_start_is_sold_what_nearly_all_needed_whatever_others_did() -> None:
    losses = [2.0, *GOOD[1:]]
    rows = [sold(f"{family} a", losses, same=False) for family in ("reply", "record")]
    found = replay(rows)["mixed"]["held_out"]
    # 0.55 and twice 0.14 of 36 steps.
    assert found["most_sold"] == pytest.approx(30 / 36, abs=1e-4)
    assert found["warm"] == 1


def test_a_job_with_no_donor_that_knows_its_rows_is_sold_cold() -> None:
    found = replay([sold("record b", [3.8, *GOOD[1:]], same=False)])
    assert found["near_duplicates"]["all"]["jobs"] == 0
    of = found["mixed"]["all"]
    assert (of["jobs"], of["warm"], of["price_cut"], of["most_sold"]) == (1, 0, 0.0, 1.0)


def test_the_command_reads_the_lines_and_says_what_is_wrong_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(sold("reply a", GOOD)) + "\n")
    assert main(["merging", "replay", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["near_duplicates"]["all"]["jobs"] == 1
    for text in ("{", "[]", "{}", ""):
        path.write_text(text)
        assert main(["merging", "replay", str(path)]) == 2
        assert "rows.jsonl: " in capsys.readouterr().err
