"""The list of docs/gpu-checklist.md by one command: limits, what is left, going on."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from workers.bench.cases import GPU_CASES
from workers.bench.checklist import (
    EXIT_BAD,
    EXIT_GOOD,
    EXIT_LEFT,
    SUMMARY,
    ChecklistItem,
    list_items,
    read_summary,
    run_items,
)
from workers.bench.checks import CHECKS
from workers.bench.product_checks import FAMILIES

FOREVER = 1e12


def item(name: str, code: str, limit_s: float = 30.0) -> ChecklistItem:
    return ChecklistItem(name, (sys.executable, "-c", code), limit_s)


def count_runs(name: str, log: Path) -> ChecklistItem:
    return item(name, f"open({str(log)!r}, 'a').write('x'); print('{name} said this')")


def test_items_that_have_run_are_not_run_again_and_what_they_said_is_kept(tmp_path, capsys):
    log = tmp_path / "runs"
    items = [count_runs("first", log), item("second", "import sys; sys.exit('no such kernel')")]
    assert run_items(items, out=tmp_path / "out", until=FOREVER) == EXIT_BAD
    assert run_items(items, out=tmp_path / "out", until=FOREVER) == EXIT_BAD
    assert log.read_text() == "x"
    assert (tmp_path / "out" / "first.out").read_text() == "first said this\n"
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["item"], row["ok"]) for row in shown] == 2 * [("first", True), ("second", False)]
    assert shown[1]["said"] == "no such kernel"

    mended = [items[0], item("second", "")]
    assert run_items(mended, out=tmp_path / "out", until=FOREVER, again=True) == EXIT_GOOD
    assert log.read_text() == "x"


def test_an_item_that_does_not_fit_waits_for_the_next_command(tmp_path, capsys):
    log = tmp_path / "runs"
    items = [count_runs("short", log), item("long", "", limit_s=500)]
    until = time.monotonic() + 100
    assert run_items(items, out=tmp_path, until=until) == EXIT_LEFT
    assert list(read_summary(tmp_path)) == ["short"]
    assert "Left: long, which may take 500 s." in capsys.readouterr().err
    # as where the process was killed while it wrote
    with (tmp_path / SUMMARY).open("a") as file:
        file.write('{"item": "lo\n')
    assert run_items(items, out=tmp_path, until=FOREVER) == EXIT_GOOD
    assert log.read_text() == "x"


def test_an_item_over_its_limit_is_ended_and_the_next_one_runs(tmp_path):
    items = [item("hangs", "import time; time.sleep(99)", limit_s=0.2), item("next", "")]
    assert run_items(items, out=tmp_path, until=FOREVER) == EXIT_BAD
    rows = read_summary(tmp_path)
    assert rows["hangs"]["status"] is None
    assert rows["hangs"]["said"] == "It was over its limit of 0.2 s and was ended."
    assert rows["next"]["ok"]


def test_the_list_has_every_check_and_case_and_each_item_fits_into_ten_minutes():
    items = list_items("cuda:1")
    names = [one.name for one in items]
    checks = [name.removeprefix("check-") for name in names if name.startswith("check-")]
    families = [name for name in checks if name.startswith("families.")]
    assert families == [f"families.{family}" for family in FAMILIES]
    where = checks.index(families[0])
    assert [*checks[:where], "families", *checks[where + len(families) :]] == list(CHECKS)
    assert names[0] == "installation"
    assert len([name for name in names if name.startswith("speed")]) == len(GPU_CASES)
    assert names[-1] == "calibrate"
    assert max(one.limit_s for one in items) <= 540
    assert all("cuda:1" in one.command for one in items if one.name.startswith("check-"))
