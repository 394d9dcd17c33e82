"""Welfare as a share of the Lagrangian bound, on settings chosen to differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.experiments.auction.scenario import Scenario
from scheduler.types import Task

#: Seeds of past days lie this far from those of the day itself.
_PAST = 10_000


@dataclass(frozen=True, slots=True)
class Setting:
    """A day, and what was seen before it."""

    scenario: Scenario
    #: What past days were like, in turn; none on a first day.
    past: tuple[Scenario, ...]
    past_days: int = 2

    @property
    def name(self) -> str:
        return self.scenario.name

    def with_slots(self, slots: int) -> Setting:
        """Give the setting with days of another length."""
        past = tuple(replace(scenario, slots=slots) for scenario in self.past)
        return Setting(replace(self.scenario, slots=slots), past, self.past_days)

    def history(self, seed: int) -> list[Sequence[Task]]:
        """Give the past days that belong to a seed."""
        if not self.past:
            return []
        kinds = len(self.past)
        return [self.past[n % kinds].day(_PAST + 100 * seed + n) for n in range(self.past_days)]


def like(scenario: Scenario) -> Setting:
    """Give a setting whose past days were like the day."""
    return Setting(scenario, (scenario,))


def settings(*, scale: float = 1.0) -> list[Setting]:
    """Give the settings; ``scale`` shrinks nodes and bids together."""

    def make(name: str, nodes: int, bids: float, **fields: object) -> Scenario:
        base = Scenario(name, nodes=max(round(nodes * scale), 2), bids_per_slot=bids * scale)
        return replace(base, **fields)  # type: ignore[arg-type]

    evening = make("evening rush, past mornings (wrong shape)", 100, 50, shape="evening")
    crowd = make("past days twice as busy (wrong count)", 100, 30)
    return [
        like(make("50 nodes, 30 bids", 50, 30)),
        like(make("50 nodes, 80 bids", 50, 80)),
        like(make("100 A100, 50 bids", 100, 50, mix="a100")),
        like(make("100 A40, 50 bids", 100, 50, mix="a40")),
        like(make("200 nodes, 80 bids", 200, 80)),
        like(make("200 nodes, 30 bids", 200, 30)),
        like(make("lognormal deadlines", 100, 50, deadlines="lognormal")),
        like(make("tight deadlines", 100, 50, deadlines="tight")),
        like(make("loose deadlines", 100, 50, deadlines="loose")),
        like(make("no cleaning", 100, 50, cleaning_share=0.0)),
        like(make("own asks, 2 % apart", 100, 50).with_own_asks(0.02)),
        like(make("own asks, 40 % apart", 100, 50).with_own_asks(0.4)),
        like(make("morning rush", 100, 50, shape="morning")),
        Setting(evening, (replace(evening, shape="morning"),)),
        Setting(crowd, (replace(crowd, bids_per_slot=2 * crowd.bids_per_slot),)),
        Setting(make("first day", 100, 50), ()),
        Setting(make("first day, evening rush", 100, 50, shape="evening"), ()),
    ]


@dataclass(frozen=True, slots=True)
class DayQuality:
    """What a policy or baseline made of a day."""

    welfare: float
    admitted: int
    bids: int
    revenue: float
    #: CPU seconds, solves included.
    seconds: float


@dataclass(frozen=True, slots=True)
class SettingResult:
    """One setting and seed."""

    setting: str
    seed: int
    bound: float
    results: dict[str, DayQuality]

    def share(self, name: str) -> float:
        """Give welfare as a share of the bound."""
        return self.results[name].welfare / self.bound if self.bound > 0 else 1.0
