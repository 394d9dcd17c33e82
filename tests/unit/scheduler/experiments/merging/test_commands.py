"""``python -m scheduler merging``: answers to files, and to files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.__main__ import main

DATA = Path(__file__).parents[4] / "data" / "merging"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["merging", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_two_related_jobs_are_merged(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "solve", str(DATA / "two_jobs.json"))
    assert found == {
        "form": "chosen",
        "feasible": True,
        "optimal": True,
        "objective": pytest.approx(1.15),
        "bound": pytest.approx(1.15),
        "gpus_used": 4,
        "assignments": [{"jobs": ["reviews", "replies"], "mode": "temporal", "gpus": 4}],
        "waiting": [],
        "columns": 14,
        "pairs": 1,
    }


def test_the_same_jobs_as_printed_get_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "solve", str(DATA / "two_jobs.json"), "--form", "printed")
    assert found["reading"] == "numbers above zero; literally infeasible"
    assert (found["objective"], found["waiting"]) == (0.0, ["reviews", "replies"])


def test_every_form_serves_each_job_of_a_queue_once(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("runnable", "repaired", "chosen"):
        found = run(capsys, "solve", str(DATA / "queue.json"), "--form", form)
        served = [job for one in found["assignments"] for job in one["jobs"]] + found["waiting"]
        assert sorted(served) == ["fresh", "long", "merged", "pipeline", "running", "short"]
        assert found["gpus_used"] <= 4


def test_profiles_become_an_instance_that_can_be_solved(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    estimated = run(capsys, "estimate", str(DATA / "profiles.json"))
    a = estimated["jobs"][0]
    assert (a["id"], a["iterations"], a["iterations_as_printed"]) == ("a", 1062, 1)
    # One GPU, 0.4 s an iteration.
    assert a["times_s"]["1"] == pytest.approx(1062 * 0.4)
    # The pipeline job runs on whole servers only.
    assert sorted(estimated["jobs"][2]["times_s"]) == ["4", "8"]
    assert [pair["mode"] for pair in estimated["pairs"]] == ["temporal"] * 3
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(estimated))
    assert run(capsys, "solve", str(path))["optimal"] is True


def test_gradients_predict_both_directions_and_joint_tuning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = run(capsys, "estimate", str(DATA / "profiles.json"), "--estimator", "gradients")
    scores = {(one["donor"], one["target"]): one["score"] for one in found["estimates"]}
    assert scores["a", "b"] == scores["b", "a"] == pytest.approx(8 / 9)
    assert [pair["mode"] for pair in found["pairs"]] == ["temporal"] * 6 + ["spatial"] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": 0}, "gpus must be a whole number from 1"),
        ({"gpus": 1.5}, "gpus must be a whole number from 1"),
        ({"gpus": None}, "int() argument"),
        ({"jobs": {}}, "jobs must be a list"),
        ({"jobs": [{"id": "a"}]}, "field 'times_s' is missing"),
        ({"jobs": [{"id": "a", "times_s": {"1": 0}}]}, "times_s must be above zero"),
        ({"jobs": [{"id": "a", "times_s": {"1": "nan"}}]}, "finite number"),
        ({"jobs": [{"id": "a", "times_s": {}}]}, "a has no time on any number of GPUs"),
        ({"jobs": [{"id": "a", "times_s": {"1": 1}}] * 2}, "two jobs are called a"),
        ({"jobs": [{"id": "a", "times_s": {"1": 1}, "members": 3}]}, "members must be a whole"),
        ({"pairs": [{"first": "a", "second": "a", "mode": "temporal"}]}, "names no two jobs"),
        (
            {"pairs": [{"first": "reviews", "second": "replies", "mode": "sequential"}]},
            "mode must be temporal or spatial",
        ),
        ({"wait_s": -1}, "wait_s must be a finite number"),
    ],
)
def test_solve_answers_mistakes_with_a_line_and_status_two(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((DATA / "two_jobs.json").read_text())
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(data | {"pairs": []} | change))
    assert main(["merging", "solve", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(path) in printed.err
    assert message in printed.err


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("history", [], "at least one"),
        ("iteration_s", {}, "has no tiny r8"),
        ("probes", [{"donor": "a", "target": "x", "loss": 1}], "names no two jobs"),
    ],
)
def test_estimate_answers_mistakes_with_a_line_and_status_two(
    field: str, value: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((DATA / "profiles.json").read_text())
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps(data | {field: value}))
    assert main(["merging", "estimate", str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, "{", '{"gpus": 1e999}'])
def test_files_that_are_no_instance_are_named(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    assert main(["merging", "solve", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
