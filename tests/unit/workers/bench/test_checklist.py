"""The list of docs/gpu-checklist.md by one command: limits, what is left, going on."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from workers.bench import checks
from workers.bench.cases import GPU_CASES
from workers.bench.checklist import (
    EXIT_BAD,
    EXIT_GOOD,
    EXIT_LEFT,
    SUMMARY,
    ChecklistItem,
    list_items,
    list_lines,
    main,
    read_summary,
    run_items,
)
from workers.bench.checks import CHECKS, FAMILY_CHECKS

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


def test_the_list_has_every_check_and_case_and_its_first_part_fits_into_ten_minutes():
    items = list_items("cuda:1")
    names = [one.name for one in items]
    checked = [
        check
        for one in items
        if "check" in one.command
        for check in one.command[one.command.index("--only") + 1].split(",")
    ]
    assert sorted(checked) == sorted([*(CHECKS.keys() - {"families"}), *FAMILY_CHECKS])
    assert all("cuda:1" in one.command for one in items if "check" in one.command)
    cases = [one.command[-1] for one in items if one.name.startswith("speed")]
    assert cases == [case.name for case in GPU_CASES]
    assert names[0] == "installation"
    assert names.index("speed-01") < names.index("resume")
    assert max(one.limit_s for one in items) <= 540


def test_nothing_else_runs_where_libraries_are_missing(tmp_path):
    missing = ChecklistItem("first", (sys.executable, "-c", "import none"), 30, is_needed=True)
    assert run_items([missing, item("next", "")], out=tmp_path, until=FOREVER) == EXIT_BAD
    assert list(read_summary(tmp_path)) == ["first"]


def test_the_list_ends_with_a_table_of_least_and_most(tmp_path):
    rows = [{"check": "memory", "ok": True, "ratio": ratio, "is_used": True} for ratio in (1, 1.1)]
    rows.append({"check": "memory", "ok": False, "ratio": 0.9, "is_used": False})
    text = "".join(
        f"{json.dumps(row)}\\n" for row in [{"check": "a", "ok": True, "off": 0.5}, *rows]
    )
    items = [item("sums", f"print('{text}'); print('no JSON')"), item("left", "", limit_s=500)]
    assert run_items(items, out=tmp_path, until=time.monotonic() + 100) == EXIT_LEFT
    *_, sums, left = list_lines(items, out=tmp_path)
    seconds = read_summary(tmp_path)["sums"]["seconds"]
    assert sums == (
        f"| sums | yes | {seconds} | a off 0.5; memory is_used 2 of 3, ratio 0.9 to 1.1; "
        f"**bad:** `{json.dumps(rows[-1])}` |"
    )
    assert left == "| left | not run | | |"


def test_a_check_runs_on_a_cpu_at_small_sizes(capsys):
    assert checks.main(["--device", "cpu", "--only", "grouped"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["check"] == "grouped"
    assert row["off"] <= 0.1
    assert min(row["dense_ms"], row["run_by_run_ms"], row["grouped_ms"]) > 0


@pytest.mark.nightly
def test_the_whole_list_is_good_on_a_cpu_at_small_sizes(tmp_path, capsys):
    assert main(["--small", "--out", str(tmp_path), "--minutes", "60"]) == EXIT_GOOD
    items = list_items("cpu")
    _, *table = capsys.readouterr().out.splitlines()[-len(items) - 1 :]
    assert [line.split(" | ")[:2] for line in table] == [[f"| {one.name}", "yes"] for one in items]
    rows = [json.loads(line) for line in (tmp_path / "limits.out").read_text().splitlines()]
    assert [row["check"] for row in rows] == [*["attach"] * 4, "out_of_memory", *["long_row"] * 2]
    assert "needs 0.060 GB" in rows[0]["reason"]
