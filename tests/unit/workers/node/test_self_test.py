"""Several nodes on one machine measure it once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workers.node import join, self_test
from workers.node.self_test import SpeedCase
from workers.training.faults import SystemFault


def test_a_case_whose_jobs_do_not_fit_is_left_out(monkeypatch, runtime, base, tmp_path) -> None:
    attach = self_test._attach

    def refuse(runtime, data, job, meter):
        if job.job_id == "selftest-1":
            raise SystemFault("This job does not fit.")
        attach(runtime, data, job, meter)

    monkeypatch.setattr(self_test, "_attach", refuse)
    cases = tuple(SpeedCase(2, 0.1, jobs) for jobs in (3, 1))
    rows = self_test.measure_speeds(runtime, base, cases=cases, folder=tmp_path, seconds_each=0.01)
    assert [row.jobs for row in rows] == [1]
    assert runtime.jobs() == ()


def joins(market, folder: Path, *more: str) -> None:
    arguments = ["--url", market.url, "--state-dir", str(folder), "--token", "join-token"]
    assert join.main([*arguments, "--device", "cpu", *more]) == 0


def test_the_second_node_goes_by_what_the_first_measured(market, tmp_path, measured) -> None:
    kept = ("--measured", str(tmp_path / "facts" / "measured.json"))
    joins(market, tmp_path / "one", "--name", "one", *kept)
    joins(market, tmp_path / "two", "--name", "two", *kept, "--memory-gb", "2.5")
    assert measured == ["cpu"]
    first, second = (request.facts for request in market.joins)
    assert second.speeds == first.speeds
    assert (first.memory_gb, second.memory_gb) == (pytest.approx(first.memory_gb), 2.5)


def test_figures_of_another_machine_are_not_gone_by(market, tmp_path, measured) -> None:
    path = tmp_path / "measured.json"
    joins(market, tmp_path / "first", "--name", "first", "--measured", str(path))
    others = {
        "another machine": {"hostname": "elsewhere"},
        "another torch": {"torch_version": "0.1"},
        "other models": {"speeds": []},
        "another format": {"cores": "many"},
    }
    for times, (name, changed) in enumerate(others.items(), start=2):
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
        joins(market, tmp_path / f"n{times}", "--name", f"n{times}", "--measured", str(path))
        assert measured == ["cpu"] * times, name
    # What was measured instead is what the next one goes by.
    joins(market, tmp_path / "last", "--name", "last", "--measured", str(path))
    assert measured == ["cpu"] * 5
