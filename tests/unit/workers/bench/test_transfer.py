"""The transfer experiment: its tasks, a tiny run for real, and what it says of rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from workers.bench.transfer import FULL, QUICK, measure_transfer, summarize
from workers.bench.transfer_tasks import TASKS, write_task


def test_there_are_twelve_tasks_in_four_families() -> None:
    assert len({task.name for task in TASKS}) == 12
    families = [task.family for task in TASKS]
    assert {family: families.count(family) for family in families} == {
        "reply": 3, "units": 3, "record": 3, "list": 3,
    }  # fmt: skip
    assert FULL.tasks == TASKS
    assert FULL.seeds == 3


def test_a_task_has_the_same_rows_for_one_seed_and_none_twice(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_task(TASKS[3], tmp_path / name, rows=50, seed=seed)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    rows = [json.loads(line) for line in texts[0].splitlines()]
    assert len({row["input"] for row in rows}) == 50
    left, _, _, right, _ = rows[0]["input"].split()
    assert rows[0]["output"].endswith(f"together {100 * int(left) + int(right)} cm.")


@pytest.mark.nightly
def test_a_tiny_experiment_trains_every_ordered_pair_both_ways() -> None:
    tiny = replace(
        QUICK,
        tasks=TASKS[:2],
        rows=24,
        batch_size=4,
        steps=5,
        every=1,
        sold_every=2,
        spatial_pairs=1,
        sold=(3,),
        sold_near=(2,),
    )
    found = list(measure_transfer(tiny))
    for row in (market := [row for row in found if row["form"].startswith("sold")]):
        # Before the first step, after two, four and all five, wherever the steps sold end.
        assert len(row["losses"]) == len(row["cold_losses"]) == 4
        assert row["losses"][0] < row["cold_losses"][0]
        assert row["sold"] == (2 if row["same_task"] else 3)
    assert [(row["donor"], row["target"]) for row in market] == [
        (donor, target)
        for target, other in ((TASKS[0].name, TASKS[1].name), (TASKS[1].name, TASKS[0].name))
        for donor in (other, target)
    ]
    rows = [row for row in found if row not in market]
    forms = [(row["form"], row["donor"], row["target"]) for row in rows]
    north, south = "reply north", "reply south"
    both = ("temporal", "temporal, B scaled")
    expected = []
    for other, target in ((south, north), (north, south)):
        expected.append(("probes", "", target))
        expected += [(form, donor, target) for donor in (other, target) for form in both]
    assert forms == [*expected, ("spatial", north, south)]
    probes, halved = rows[0], rows[2]
    assert list(probes["losses"]) == [south]
    assert probes["losses"][south] - probes["base_loss"] == pytest.approx(halved["probe"], abs=2e-4)
    for row in (row for row in rows if row["form"] in both):
        assert row["related"] is True
        assert row["same_task"] is (row["donor"] == row["target"])
        assert row["share"] == round(row["steps"] / row["cold_steps"], 4)
        assert 0.0 < row["cosine"] <= 1.0
        # A donor of the same family knows more of the rows than the base.
        assert row["probe"] < 0.0
        # So it is there sooner.
        assert row["share"] < 1.0
        assert len(row["losses"]) == row["steps"] + 1
        assert row["losses"][-1] <= 1.01 * row["cold_losses"][-1] + 1e-4
    # What is known is not trained again.
    names = {(row["form"], row["seed"], row["donor"], row["target"]) for row in rows}
    names |= {(row["form"], row["seed"], row["donor"], row["target"]) for row in market}
    left = names - {("temporal", 0, south, north)}
    assert list(measure_transfer(tiny, known=left)) == [rows[1]]
    assert list(measure_transfer(tiny, known=names)) == []


def test_the_summary_puts_the_majority_beside_the_accuracy() -> None:
    rows = [
        {"form": form, "share": share, "related": related, "probe": probe, "cosine": 0.1 * i}
        for form in ("temporal", "temporal, B scaled")
        for i, (share, related, probe) in enumerate(
            [(0.5, True, -1.0), (0.6, True, -0.8), (1.2, False, 0.4), (0.9, False, -0.2)]
        )
    ]
    rows.append({"form": "spatial", "share": 1.3})
    plain, _, together = summarize(rows)
    assert plain["pairs"] == 4
    assert (plain["faster"], plain["related_faster"], plain["majority"]) == (0.75, 1.0, 0.75)
    assert plain["probe_r"] == 1.0
    assert plain["probe_accuracy"] == 1.0
    assert together == {"summary": "spatial", "pairs": 1, "saved_work": 0, "mean_share": 1.3}
