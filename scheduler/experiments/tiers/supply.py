"""Random supply: offers that move and disappear, start-up times, node lives.

Everything random is drawn here, before the run and by seed, so that two policies
compared under one seed meet the same market.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.tiers.state import DrawnSupply

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SupplyRules:
    """The market a run meets; numbers of the Allpass paper unless said otherwise."""

    #: A100 offers listed on the marketplace (figure 3 shows 40 to 60).
    offers: int = 54
    #: Lowest, median and highest asking price, dollars per hour (table 2).
    price_usd_per_h: tuple[float, float, float] = (0.38, 1.08, 1.66)
    #: Mean and spread of start-up times, seconds (table 3).
    serverless_boot_s: tuple[float, float] = (3.88, 1.84)
    marketplace_boot_s: tuple[float, float] = (36.04, 7.35)
    conventional_boot_s: tuple[float, float] = (255.59, 26.26)
    #: Seconds between price moves. Not from the paper, as the next four.
    move_every_s: float = 600.0
    #: Share of its rank an offer forgets at each move.
    restlessness: float = 0.02
    #: Chances per move that a listed offer goes, and that a gone one comes back.
    leaves: float = 0.01
    returns: float = 0.09
    #: Chance that a marketplace boot ends without a worker, billed all the same.
    vanish: float = 0.0
    #: Mean hours from ready to failure of a worker; infinite for none.
    mean_life_h: float = math.inf

    def __post_init__(self) -> None:
        low, median, high = self.price_usd_per_h
        if not 0 < low <= median <= high:
            raise ValueError(f"prices must rise: lowest, median, highest, got {low, median, high}")
        if not 0 <= self.vanish < 1:
            raise ValueError(f"vanish is a chance below 1, got {self.vanish}")
        if not self.mean_life_h > 0:
            raise ValueError(f"mean_life_h must be above zero, got {self.mean_life_h}")


def draw_supply(*, rules: SupplyRules, seed: int, span_s: float) -> DrawnSupply:
    """Draws the market of one seed.

    Parameters
    ----------
    rules : SupplyRules
        What to draw from.
    seed : int
        The same seed gives the same market bit for bit.
    span_s : float
        Seconds of price moves to draw, at least; a longer run meets them again.

    Notes
    -----
    An offer's price is a quantile of a distribution that is linear from lowest to
    median and from median to highest, so that the three prices of table 2 hold. The
    quantile follows a mean-reverting Gaussian walk, kept uniform by its distribution
    function.
    """
    rng = np.random.default_rng([seed, 0x5EED])
    steps = max(2, math.ceil(span_s / rules.move_every_s))
    offers = _offer_prices(rng, rules, steps)
    lives = (
        rng.exponential(rules.mean_life_h * 3600.0, 100_003)
        if math.isfinite(rules.mean_life_h)
        else np.array([math.inf])
    )
    return DrawnSupply(
        offers=offers,
        step_s=rules.move_every_s,
        marketplace_boots_s=boot_times(rng, rules.marketplace_boot_s, 100_003),
        conventional_boots_s=boot_times(rng, rules.conventional_boot_s, 100_003),
        luck=rng.random(100_003),
        vanish=rules.vanish,
        lives_s=lives,
    )


def boot_times(rng: np.random.Generator, law: tuple[float, float], count: int) -> Floats:
    """Normal start-up times, none below a quarter of the mean."""
    mean, spread = law
    return np.maximum(0.25 * mean, rng.normal(mean, spread, count))


def _offer_prices(rng: np.random.Generator, rules: SupplyRules, steps: int) -> Floats:
    keep = 1.0 - rules.restlessness
    fresh = math.sqrt(1.0 - keep * keep)
    # One draw per offer, spread evenly over the ranks, so that every seed lists the
    # whole range of table 2.
    level = _normal_quantile((rng.permutation(rules.offers) + 0.5) / max(1, rules.offers))
    listed = np.ones(rules.offers, dtype=bool)
    low, median, high = rules.price_usd_per_h
    prices = np.empty((steps, rules.offers))
    for step in range(steps):
        rank = _normal_rank(level)
        asked = np.where(
            rank < 0.5, low + (median - low) * 2 * rank, median + (high - median) * (2 * rank - 1)
        )
        prices[step] = np.where(listed, asked, math.inf)
        level = keep * level + fresh * rng.normal(size=rules.offers)
        luck = rng.random(rules.offers)
        listed = np.where(listed, luck >= rules.leaves, luck < rules.returns)
    return prices


def _normal_rank(values: Floats) -> Floats:
    from scipy.special import ndtr  # pyright: ignore[reportMissingTypeStubs]

    return np.asarray(ndtr(values), dtype=np.float64)


def _normal_quantile(ranks: Floats) -> Floats:
    from scipy.special import ndtri  # pyright: ignore[reportMissingTypeStubs]

    return np.asarray(ndtri(ranks), dtype=np.float64)
