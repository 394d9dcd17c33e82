"""Every policy of the experiments, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from scheduler.experiments.prompts.lanes import ChosenLane, InflessLane, PaperLane, TuningLane
from scheduler.experiments.prompts.repairs import PRINTED, REPAIRED
from scheduler.prompts.rules import LaneRules

#: The chosen lane: gangs of at most one server's GPUs, the least gain ever seen in
#: predictions, and a short window above the floor.
CHOSEN = LaneRules(max_gpus=8, predicted_gain=1.2, reclaim_s=10.0)
#: Runs apart: its GPUs are in one pool and gangs change while they run.
ELASTICFLOW = "elasticflow"


def _chosen(
    *, rules: LaneRules = CHOSEN, least: int = 2, most: int = 6, admits: bool = False
) -> TuningLane:
    return ChosenLane(rules=rules, least_floor=least, most_floor=most, admits=admits)


def _paper(*, rules: LaneRules | None = None, **repairs: bool) -> TuningLane:
    return PaperLane(rules=rules or LaneRules(), repairs=replace(REPAIRED, **repairs))


LANES: dict[str, Callable[[int], TuningLane]] = {
    "printed": lambda seed: PaperLane(repairs=PRINTED),
    "repaired": lambda seed: PaperLane(),
    "chosen": lambda seed: _chosen(),
    "chosen-admits": lambda seed: _chosen(admits=True),
    "infless": lambda seed: InflessLane(rng=np.random.default_rng([seed, 7])),
    # One error of the text put back.
    "repaired-line-12-printed": lambda seed: _paper(growth=False),
    "repaired-slo-printed": lambda seed: _paper(time_left=False),
    "repaired-delay-printed": lambda seed: _paper(delay=False),
    "repaired-bound-printed": lambda seed: _paper(pool_bound=False),
    "repaired-late-printed": lambda seed: _paper(late_jobs=False),
    # Parts of the paper's scheduler left out (table 8) or changed.
    "repaired-no-delay": lambda seed: PaperLane(delays=False),
    "repaired-no-budget": lambda seed: _paper(rules=LaneRules(lookup_share=1.0)),
    "repaired-no-bank": lambda seed: _paper(rules=LaneRules(lookup_share=0.0)),
    "repaired-window-10": lambda seed: _paper(rules=LaneRules(reclaim_s=10.0)),
    "repaired-gain-1.2": lambda seed: _paper(rules=LaneRules(predicted_gain=1.2)),
    "repaired-gain-2": lambda seed: _paper(rules=LaneRules(predicted_gain=2.0)),
    # Parts of the chosen lane left out or changed.
    "chosen-no-floor": lambda seed: _chosen(least=0, most=0),
    "chosen-floor-4": lambda seed: _chosen(least=4, most=4),
    "chosen-window-60": lambda seed: _chosen(rules=replace(CHOSEN, reclaim_s=60.0)),
    "chosen-gangs-16": lambda seed: _chosen(rules=replace(CHOSEN, max_gpus=16)),
    "chosen-gain-1": lambda seed: _chosen(rules=replace(CHOSEN, predicted_gain=1.0)),
    "chosen-gain-2": lambda seed: _chosen(rules=replace(CHOSEN, predicted_gain=2.0)),
    "chosen-no-bank": lambda seed: _chosen(rules=replace(CHOSEN, lookup_share=0.0)),
}
POLICIES = (*LANES, ELASTICFLOW)


def make_lane(policy: str, seed: int) -> TuningLane:
    """Make the lane of a name.

    Raises
    ------
    ValueError
        For a name that is none of a lane's.
    """
    if policy not in LANES:
        raise ValueError(f"no policy {policy!r}; choose one of {', '.join(POLICIES)}")
    return LANES[policy](seed)
