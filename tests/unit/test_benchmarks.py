"""The smallest case of the benchmarks that write a log of their own still runs."""

from __future__ import annotations

import json

import pytest

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
