"""Every benchmark of the Makefile runs, with its least work, and prints a JSON line a case.

What starts processes of a whole house runs nightly, and is imported every day.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks import bench_books, bench_lane, bench_ledger, bench_log, bench_tiers_live

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "benchmarks"
#: Those that need no database, with their arguments and the least number of lines.
ALONE: dict[str, tuple[list[str], int]] = {
    "bench_auction": (["--smallest"], 12),
    "bench_auction_day": (["--smallest"], 2),
    "bench_merging": (["--jobs", "5", "--gpus", "8", "--seeds", "1"], 7),
    "bench_preparation": (["--smallest"], 1),
    "bench_prompts": ([], 4),
    "bench_tiers": (["--jobs", "50"], 5),
    "bench_training": (["--smallest"], 3),
    "bench_work": (["--repeats", "1", "--smallest"], 12),
}
#: Those whose rows lie in the database of the tests: here without servers of their own.
WITH_ROWS: dict[str, Callable[[], object]] = {
    "bench_books": lambda: bench_books.measure_sizes((20, 40)),
    "bench_lane": lambda: bench_lane.bench_decisions(8, least=4),
    "bench_ledger": lambda: bench_ledger.compare(rounds=1, batch=4),
    "bench_log": lambda: bench_log.bench(130, profile=False),
    "bench_tiers_live": lambda: bench_tiers_live.bench_tick(jobs=20, past=20, rounds=1),
}
#: Those that start servers, a house or a node, as commands.
WITH_PROCESSES: dict[str, list[str]] = {
    "tests.benchmarks.bench_api": ["--requests", "8", "--upload-mb", "1"],
    "tests.benchmarks.bench_bids": ["--bids", "20", "--callers", "4"],
    "tests.benchmarks.bench_express": ["--requests", "4"],
    "tests.benchmarks.bench_idle": ["--seconds", "2"],
    "tests.benchmarks.bench_large_house": ["--zones", "2", "--nodes", "60"],
    "tests.benchmarks.bench_nodes": ["--nodes", "10"],
    "tests.benchmarks.bench_lane": ["--quick", "--only", "http", "--rates", "5"],
    "tests.benchmarks.bench_move": ["--rounds", "1"],
    "tests.benchmarks.bench_pages": ["--seconds", "2"],
    "workers.bench": ["prompts"],
}
#: It prints a table for the documents, and has tests of its own.
NO_LINES = {"tests.preparation_quality.mess"}


def read_lines(text: str) -> list[dict[str, Any]]:
    """The lines as JSON objects; one that is none fails."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"case", "bench"} & line.keys() for line in lines), lines
    return lines


@pytest.fixture
def own_threads() -> Iterator[None]:
    """Give back the number of threads that a benchmark changed."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALONE)
def test_it_runs(name: str, capsys: pytest.CaptureFixture[str], own_threads: None) -> None:
    arguments, least = ALONE[name]
    main = import_module(f"tests.benchmarks.{name}").main
    main(arguments) if name != "bench_prompts" else main()
    assert len(read_lines(capsys.readouterr().out)) >= least


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITH_ROWS)
@pytest.mark.django_db(transaction=True)
def test_it_runs_on_rows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    WITH_ROWS[name]()
    lines = read_lines(capsys.readouterr().out)
    assert len(lines) >= 1
    if name == "bench_log":
        assert {line["entries"] for line in lines} == {131}
        assert [line["case"] for line in lines[-3:]] == [
            "replay with every outcome and hash compared",
            "archived, each file read back",
            "read from the files",
        ]
    if name == "bench_books":
        assert [line["bids"] for line in lines[:-1]] == [20, 40]


@pytest.mark.nightly
@pytest.mark.parametrize("module", WITH_PROCESSES)
def test_it_runs_with_its_processes(module: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", module, *WITH_PROCESSES[module]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_lines(done.stdout)


def test_every_benchmark_of_the_makefile_is_among_them() -> None:
    recipes = re.findall(r"^\t@?.*-m (\S+)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    wanted = {name for name in recipes if "bench" in name} | NO_LINES
    here = {f"tests.benchmarks.{name}" for name in (*ALONE, *WITH_ROWS)} | WITH_PROCESSES.keys()
    assert wanted == here | NO_LINES


@pytest.mark.filterwarnings("ignore")
def test_every_benchmark_finds_what_it_measures() -> None:
    """A name that is gone shows here, not at the next figures."""
    names = sorted(f"tests.benchmarks.{path.stem}" for path in FOLDER.glob("bench_*.py"))
    assert len(names) > 20
    for name in names:
        import_module(name)
