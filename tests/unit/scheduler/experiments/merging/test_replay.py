"""Measured pairs as jobs of the market: what they are sold, and on whose starts that rests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.__main__ import main
from scheduler.experiments.merging.replay import replay


def row(seed: int, donor: str, target: str, *, probe: float, steps: int, half: bool = True) -> Any:
    return {
        "form": "temporal, B scaled" if half else "temporal",
        "seed": seed,
        "donor": donor,
        "target": target,
        "steps": steps,
        "cold_steps": 30,
        "every": 3,
        "base_loss": 4.0,
        "probe": probe,
        "donor_before": 5.0,
        "donor_after": 1.0,
        "cold_losses": [4.0, *[1.0] * 9, 0.8],
    }


def seed_rows(seed: int, *, related: int, near: int) -> list[Any]:
    """One target with a related donor, one that does harm, and one of its own task."""
    return [
        row(seed, "cousin", "task", probe=-1.0, steps=related),
        row(seed, "stranger", "task", probe=0.5, steps=45),
        row(seed, "task", "task", probe=-3.5, steps=9),
        row(seed, "task", "task", probe=-3.6, steps=near, half=False),
    ]


def test_a_job_is_quoted_by_what_starts_of_other_seeds_needed() -> None:
    found = replay([*seed_rows(0, related=12, near=0), *seed_rows(1, related=27, near=3)])
    mixed = {one["margin"]: one for one in found["mixed"]}
    # Seed 0 is quoted (4 x 0.6 + 0.9) / 5, seed 1 (4 x 0.6 + 0.4) / 5, in whole evaluations of 4.
    assert mixed[0.0]["price_cut"] == pytest.approx(((1 - 20 / 30) + (1 - 20 / 30)) / 2, abs=1e-4)
    assert mixed[0.0]["after_royalty"] == pytest.approx(0.9 * 10 / 30, abs=1e-4)
    # Seed 1 needed 27 of 30 steps and was sold 20.
    assert mixed[0.0]["house_adds"] == pytest.approx(7 / 30 / 2, abs=1e-4)
    assert mixed[2.0]["house_adds"] < mixed[0.0]["house_adds"]
    assert [one["price_cut"] for one in found["near_duplicates"]] == [
        pytest.approx(1 - steps / 30, abs=1e-4) for steps in (4, 4, 6, 8)
    ]
    assert found["needed"]["related"]["mean"] == pytest.approx((12 + 27) / 60)
    # 4 x 1 / 5 x 1.02 over the cold run's 0.8.
    assert found["needed"]["near"]["target_over_cold_loss"] == [1.02, 1.02, 1.02]


def test_a_job_with_no_donor_that_knows_its_rows_is_sold_cold() -> None:
    found = replay([row(0, "stranger", "task", probe=-0.2, steps=10)])
    assert found["near_duplicates"][0]["jobs"] == 0
    for one in found["mixed"]:
        assert (one["jobs"], one["warm"], one["price_cut"], one["most_sold"]) == (1, 0, 0.0, 1.0)


def test_the_command_reads_the_lines_and_says_what_is_wrong_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in seed_rows(0, related=12, near=0)))
    assert main(["merging", "replay", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["targets"] == 1
    for text in ("{", "[]", "{}", ""):
        path.write_text(text)
        assert main(["merging", "replay", str(path)]) == 2
        assert "rows.jsonl: " in capsys.readouterr().err
