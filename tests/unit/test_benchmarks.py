"""Benchmarks still run: every module is there, and the smallest case of some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import bench_prompts
from tests.benchmarks.bench_lane import bench_decisions
from tests.benchmarks.bench_log import bench


@pytest.mark.django_db(transaction=True)
def test_the_log_is_written_restarted_from_and_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    bench(130, profile=False)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["entries"] for line in lines} == {131}
    assert lines[-1]["case"] == "replay with every outcome and hash compared"


@pytest.mark.nightly
@pytest.mark.django_db(transaction=True)
def test_decisions_of_a_lane_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    bench_decisions(8)
    assert {json.loads(line)["bench"] for line in capsys.readouterr().out.splitlines()} == {"lane"}


def test_every_benchmark_finds_what_it_measures() -> None:
    """One process imports them all: a name that is gone shows here, not at the next figures."""
    folder = Path(bench_prompts.__file__).parent
    names = sorted(f"tests.benchmarks.{path.stem}" for path in folder.glob("bench_*.py"))
    assert len(names) > 20
    script = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_rounds_of_the_express_lane_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    bench_prompts.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) >= 4
    assert all(line["ms"] > 0 for line in lines)
