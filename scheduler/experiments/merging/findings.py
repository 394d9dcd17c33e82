"""What the runs found, looked up by figure, place and policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.experiments.merging.experiments import MergingSize, Run, RunPoint, Timing
from scheduler.experiments.merging.run import MergingOutcome
from scheduler.experiments.tiers.measures import Interval, interval


@dataclass(frozen=True, slots=True)
class MergingFindings:
    """All outcomes of one call of ``reproduce merging``."""

    size: MergingSize
    points: Sequence[RunPoint]
    outcomes: Mapping[Run, MergingOutcome]
    timings: Sequence[Timing]

    def places(self, figure: str) -> list[str]:
        """The x values of a figure, in order."""
        return list(dict.fromkeys(p.x for p in self.points if p.figure == figure))

    def policies(self, figure: str) -> list[str]:
        """The policies of a figure, in order."""
        return list(dict.fromkeys(p.run.policy for p in self.points if p.figure == figure))

    def runs(self, figure: str, x: str, policy: str) -> list[MergingOutcome]:
        """Outcomes over the seeds, in their order."""
        return [
            self.outcomes[p.run]
            for p in self.points
            if (p.figure, p.x, p.run.policy) == (figure, x, policy)
        ]

    def figure_of(self, figure: str, x: str, policy: str, name: str) -> Interval:
        """Mean of one measured figure with its 95 % interval."""
        return interval([float(getattr(o, name)) for o in self.runs(figure, x, policy)])

    def times_better(
        self, figure: str, x: str, policy: str, base: str, name: str = "mean_jct_s"
    ) -> Interval:
        """How many times larger the base's figure is, seed by seed."""
        ours, theirs = self.runs(figure, x, policy), self.runs(figure, x, base)
        pairs = zip(ours, theirs, strict=True)
        return interval(
            [float(getattr(other, name)) / float(getattr(one, name)) for one, other in pairs]
        )
