"""``python -m scheduler attack``: what it prints, and what it exits with."""

from __future__ import annotations

import json
import math

import pytest

from scheduler.experiments.attack import command
from scheduler.experiments.attack.findings import Finding, Measure


def finding(*, ok: bool) -> Finding:
    return Finding(
        experiment="calm",
        case="a case",
        measures={"gain": Measure.of([0.01, 0.03])},
        goal="nothing",
        ok=ok,
    )


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_it_prints_a_line_for_each_finding_and_says_whether_all_met_their_goals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ok: bool, status: int
) -> None:
    asked: list[bool] = []

    def calm(quick: bool):
        asked.append(quick)
        yield finding(ok=True)
        yield finding(ok=ok)

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
        "ok": True,
    }
    assert [line["ok"] for line in lines] == [True, ok]
    assert asked == [True]


def test_an_unknown_experiment_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["flood"])
    assert ended.value.code == 2
    assert "no experiment 'flood': choose of decoys" in capsys.readouterr().err


def test_one_trial_has_no_confidence() -> None:
    assert Measure.of([0.5]) == Measure(0.5, math.inf, 1)
    one = Finding("calm", "one", {"gain": Measure.of([0.5])}, "nothing", ok=True)
    assert one.to_json()["gain_ci95"] is None
