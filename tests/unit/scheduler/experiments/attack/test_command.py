"""``python -m scheduler attack``: what it prints, and what it exits with."""

from __future__ import annotations

import json
import math

import pytest

from scheduler.experiments.attack import command
from scheduler.experiments.attack.findings import Finding, Measure, Verdict, find_worst


def finding(verdict: Verdict | None) -> Finding:
    return Finding(
        experiment="calm",
        case="a case",
        measures={"gain": Measure.of([0.01, 0.03])},
        goal="nothing",
        verdict=verdict,
    )


@pytest.mark.parametrize(
    ("verdict", "status"), [("holds", 0), ("open", 0), (None, 0), ("missed", 1)]
)
def test_it_prints_a_line_for_each_finding_and_says_whether_one_missed_its_goal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: Verdict | None,
    status: int,
) -> None:
    asked: list[bool] = []

    def calm(quick: bool):
        asked.append(quick)
        yield finding("holds")
        yield finding(verdict)

    monkeypatch.setattr(command, "EXPERIMENTS", {"calm": calm})
    assert command.main(["--quick"]) == status
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # 12.71 times the standard error of two trials.
    assert lines[0] == {
        "experiment": "calm",
        "case": "a case",
        "gain": 0.02,
        "gain_ci95": 0.1271,
        "trials": 2,
        "goal": "nothing",
        "verdict": "holds",
    }
    assert [line["verdict"] for line in lines] == ["holds", verdict]
    assert asked == [True]


def test_an_unknown_experiment_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["flood"])
    assert ended.value.code == 2
    assert "no experiment 'flood': choose of blocking, decoys" in capsys.readouterr().err


def test_one_trial_has_no_confidence() -> None:
    assert Measure.of([0.5]) == Measure(0.5, math.inf, 1)
    one = Finding("calm", "one", {"gain": Measure.of([0.5])}, "nothing", None)
    assert one.to_json()["gain_ci95"] is None
    assert Measure.of([0.5]).judge(most=1.0) == "open"


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (0.0, "holds"),
        (0.5, "holds"),
        (0.51, "open"),
        (1.5, "open"),
        (1.51, "missed"),
        (-1.5, "holds"),
        (-1.51, "open"),
        (-2.51, "missed"),
    ],
)
def test_a_goal_holds_if_the_whole_interval_is_inside_it_and_else_is_open_or_missed(
    mean: float, verdict: Verdict
) -> None:
    assert Measure(mean, 0.5, 9).judge(least=-2.0, most=1.0) == verdict


def test_of_goals_that_are_all_to_be_met_the_worst_tells() -> None:
    assert find_worst("holds", "holds") == "holds"
    assert find_worst("open", "holds") == "open"
    assert find_worst("open", "missed", "holds") == "missed"
