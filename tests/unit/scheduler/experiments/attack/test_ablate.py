"""``python -m scheduler ablate``: each rule out of force alone, and what that moves."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from scheduler.experiments.attack import ablate
from scheduler.experiments.attack.decoys import DecoySize
from scheduler.experiments.attack.findings import Finding, Measure, Verdict


def find(module: str, name: str) -> Any:
    target: Any = import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


@pytest.mark.parametrize("rule", ablate.RULES)
def test_a_rule_is_out_of_force_for_a_while_and_no_other_is(rule: str) -> None:
    before = {place: find(*place) for each in ablate.RULES.values() for place in each}
    others = ablate.RULES[rule]
    with ablate.out_of_force(rule):
        assert {place: find(*place) for place in before} == before | dict(others)
    assert all(before[place] != value for place, value in others.items())
    assert {place: find(*place) for place in before} == before


def test_an_unknown_rule_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ablate.main(["no such rule"])
    assert ended.value.code == 2
    assert "no rule has such a name" in capsys.readouterr().err


def test_a_rule_that_has_no_part_in_a_day_moves_nothing_and_one_that_has_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of a trend that is what it is in force.
    place, idle = ("scheduler.auction.prices.forecast", "_TREND"), "idle"
    monkeypatch.setattr(ablate, "RULES", {**ablate.RULES, idle: {place: find(*place)}})
    found = list(ablate.run([idle, "supply comes on sale along a ramp"], DecoySize(1, 6, 1)))
    assert [finding.verdict for finding in found[:1]] == ["holds"]
    assert {each.mean for name, each in found[0].measures.items() if name in MOVED} == {0.0}
    calm = {name: each.mean for name, each in found[1].measures.items() if name in MOVED[:2]}
    assert calm == {"welfare": 0.0, "payments": 0.0}
    assert {each.mean for name, each in found[2].measures.items() if name in MOVED} != {0.0}


MOVED = ("welfare", "payments", "attack_change")


def test_it_prints_each_rule_and_names_those_that_move_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts: dict[str, Verdict] = {
        "all rules; worst attack: a": "holds",
        "without: one; worst attack: a": "holds",
        "without: two; worst attack: a": "open",
    }

    def run(rules: list[str], size: DecoySize) -> list[Finding]:
        assert (len(rules), size.days) == (2, 5)
        return [
            Finding("ablate", case, {"welfare": Measure.of([0.0, 0.0])}, "nothing", verdict)
            for case, verdict in verdicts.items()
        ]

    monkeypatch.setattr(ablate, "run", run)
    assert ablate.main(["--days", "5", "futures"]) == 0
    *lines, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["case"] for line in lines] == list(verdicts)
    assert last == {"moves_nothing": ["one"]}
