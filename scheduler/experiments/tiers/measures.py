"""Figures over seeds: means with 95 % intervals, and differences under common seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from scheduler.experiments.tiers.run import TierOutcome


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the half-width of its 95 % confidence interval."""

    mean: float
    half: float

    @property
    def below_zero(self) -> bool:
        return self.mean + self.half < 0

    @property
    def above_zero(self) -> bool:
        return self.mean - self.half > 0

    def __str__(self) -> str:
        return f"{self.mean:,.2f} ± {self.half:,.2f}"


#: Figures reported of every run, by column name.
FIGURES = (
    "mean_jct_s",
    "p50_jct_s",
    "p95_jct_s",
    "miss_share",
    "cost_usd",
    "serverless_usd",
    "marketplace_usd",
    "conventional_usd",
    "wholly_serverless",
    "waiting_s",
    "boot_s",
    "queue_s",
    "moving_s",
    "peak_serverful",
    "demotions",
)


def interval(values: Sequence[float]) -> Interval:
    """Student's t interval of a mean.

    Raises
    ------
    ValueError
        With fewer than two values, which have no spread.
    """
    if len(values) < 2:
        raise ValueError("an interval needs at least two seeds")
    from scipy import stats  # pyright: ignore[reportMissingTypeStubs]

    spread = float(np.std(values, ddof=1)) / len(values) ** 0.5
    quantile = float(cast(Any, stats).t.ppf(0.975, len(values) - 1))
    return Interval(float(np.mean(values)), quantile * spread)


def summary(runs: Sequence[TierOutcome]) -> dict[str, Interval]:
    """Every figure of one policy over its seeds."""
    return {name: interval([float(getattr(run, name)) for run in runs]) for name in FIGURES}


def difference(runs: Sequence[TierOutcome], base: Sequence[TierOutcome], figure: str) -> Interval:
    """Paired difference of a figure: the same seed, workload and market on both sides."""
    return interval(_differences(runs, base, figure))


def relative(runs: Sequence[TierOutcome], base: Sequence[TierOutcome], figure: str) -> Interval:
    """Paired difference as a share of the base, so that no seed outweighs the others."""
    return interval([one / other - 1.0 for one, other in _pairs(runs, base, figure)])


def closed(
    runs: Sequence[TierOutcome],
    base: Sequence[TierOutcome],
    ideal: Sequence[TierOutcome],
    figure: str,
) -> Interval:
    """Share of the way from a base to an ideal that runs have gone, over paired seeds."""
    whole = [
        float(getattr(other, figure)) - float(getattr(best, figure))
        for other, best in zip(base, ideal, strict=True)
    ]
    lost = _differences(runs, base, figure)
    return interval([-more / way for more, way in zip(lost, whole, strict=True)])


def _differences(
    runs: Sequence[TierOutcome], base: Sequence[TierOutcome], figure: str
) -> list[float]:
    return [one - other for one, other in _pairs(runs, base, figure)]


def _pairs(
    runs: Sequence[TierOutcome], base: Sequence[TierOutcome], figure: str
) -> list[tuple[float, float]]:
    for one, other in zip(runs, base, strict=True):
        if (one.seed, one.workload, one.cap) != (other.seed, other.workload, other.cap):
            raise ValueError("paired runs must share seed, workload and cap")
    return [
        (float(getattr(one, figure)), float(getattr(other, figure)))
        for one, other in zip(runs, base, strict=True)
    ]


def as_json(run: TierOutcome) -> Mapping[str, object]:
    """What ``simulate tiers --json`` prints."""
    return {
        "policy": run.policy,
        "workload": run.workload,
        "seed": run.seed,
        "cap": run.cap,
        "jobs": run.jobs,
        "jct_s": {
            "mean": run.mean_jct_s,
            "p50": run.p50_jct_s,
            "p95": run.p95_jct_s,
        },
        "misses": run.misses,
        "cost_usd": {
            "total": run.cost_usd,
            "serverless": run.serverless_usd,
            "marketplace": run.marketplace_usd,
            "conventional": run.conventional_usd,
        },
        "wholly_serverless_share": run.wholly_serverless,
        "waiting_s": {
            "mean": run.waiting_s,
            "boot": run.boot_s,
            "queue": run.queue_s,
            "moving": run.moving_s,
        },
        "peak_workers": {"serverful": run.peak_serverful, "serverless": run.peak_serverless},
        "demotions": run.demotions,
        "preemptions": run.preemptions,
        "vanished_offers": run.vanished_offers,
        "node_failures": run.node_failures,
        "makespan_s": run.end_s,
    }
