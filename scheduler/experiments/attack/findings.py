"""What an attack came to, as one line of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal, get_args

#: Two-sided 95 % points of Student's t by degrees of freedom; beyond these the normal one.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL = 1.96
#: Whether a goal is met: ``open`` where an interval lies only partly inside it.
Verdict = Literal["holds", "open", "missed"]
_FROM_BEST: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over trials and the half width of its 95 % confidence interval."""

    mean: float
    half_width: float
    trials: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Measure:
        """Give the measure of some trials; one trial has no interval."""
        count = len(values)
        if count < 2:
            return cls(fmean(values), math.inf, count)
        quantile = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL
        return cls(fmean(values), quantile * stdev(values) / math.sqrt(count), count)

    def judge(self, *, least: float = -math.inf, most: float = math.inf) -> Verdict:
        """Say whether the whole interval lies between two bounds, part of it or nothing."""
        low, high = self.mean - self.half_width, self.mean + self.half_width
        if least <= low and high <= most:
            return "holds"
        return "missed" if high < least or low > most else "open"


def find_worst(*verdicts: Verdict) -> Verdict:
    """Give the verdict on goals that are all to be met."""
    return max(verdicts, key=_FROM_BEST.index)


@dataclass(frozen=True, slots=True)
class Finding:
    """One case of one experiment."""

    experiment: str
    case: str
    #: By what is measured; shares, so 0.01 is one percent.
    measures: Mapping[str, Measure]
    #: What should hold, in words; without a verdict the figures only stand beside others.
    goal: str
    verdict: Verdict | None

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values; half widths stand beside the means."""
        measured: dict[str, Any] = {}
        for name, measure in self.measures.items():
            measured[name] = round(measure.mean, 5)
            wide = math.isinf(measure.half_width)
            measured[f"{name}_ci95"] = None if wide else round(measure.half_width, 5)
        trials = max(measure.trials for measure in self.measures.values())
        return {
            "experiment": self.experiment,
            "case": self.case,
            **measured,
            "trials": trials,
            "goal": self.goal,
            "verdict": self.verdict,
        }
