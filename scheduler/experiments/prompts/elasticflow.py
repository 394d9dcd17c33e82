"""An ElasticFlow-like system: a fixed cluster, gangs that grow and shrink, no warm GPUs.

Every job gets its minimum share, earliest deadline first; what is left speeds up the jobs
that gain most by it. A gang that changes starts its GPUs again (T_cold): nothing of the
runtime is kept. All GPUs are paid from the first arrival to the last end. The prompt bank is
added to it, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.experiments.prompts.outcome import TuningOutcome, summarize
from scheduler.experiments.prompts.workload import MODELS, DrawnJob
from scheduler.prompts.jobs import TOLERANCE_S, compute_tuning_s
from scheduler.prompts.rules import LaneRules


@dataclass(slots=True)
class Elastic:
    """A job in the cluster."""

    drawn: DrawnJob
    boot_s: float
    #: GPU seconds left: as predicted, without the bank's gain, and in truth; lookup included.
    predicted_gpu_s: float
    true_gpu_s: float
    gpus: int = 0
    #: Until when its gang starts.
    ready_s: float = 0.0

    def end_s(self, now_s: float, gpus: int, rules: LaneRules, *, predicted: bool) -> float:
        """When it ends on a gang of this size."""
        ready_s = max(now_s, self.ready_s) if gpus == self.gpus else now_s + self.boot_s
        work = self.predicted_gpu_s if predicted else self.true_gpu_s
        return ready_s + compute_tuning_s(work, gpus, rules)


def run_elasticflow(
    drawn: Sequence[DrawnJob], *, load: str, slo: float, seed: int, gpus: int, rules: LaneRules
) -> TuningOutcome:
    """Run the whole trace.

    Parameters
    ----------
    drawn : sequence of Drawn
        Jobs in order of submission.
    load, slo, seed
        What they were drawn for.
    gpus : int
        Size of the cluster.
    rules : LaneRules
        Costs of gangs.
    """
    boots = {model.name: model.boot_s for model in MODELS}
    waiting = [
        Elastic(
            one,
            boots[one.job.base_model],
            one.job.work_gpu_s + one.job.lookup_gpu_s,
            one.job.work_gpu_s / one.gain + one.job.lookup_gpu_s,
        )
        for one in drawn
    ]
    active: list[Elastic] = []
    ended_s: dict[str, float] = {}
    busy_s = boot_s = now_s = 0.0
    while waiting or active:
        arrival_s = waiting[0].drawn.job.submitted_s if waiting else math.inf
        ends_s = [
            (one.end_s(now_s, one.gpus, rules, predicted=False), one) for one in active if one.gpus
        ]
        end_s = min((at_s for at_s, _ in ends_s), default=math.inf)
        next_s = min(arrival_s, end_s)
        for one in active:
            starting_s = max(0.0, min(next_s, one.ready_s) - now_s)
            boot_s += one.gpus * starting_s if one.gpus else 0.0
            busy_s += one.gpus * (next_s - now_s - starting_s)
            _work(one, now_s, next_s, rules)
        now_s = next_s
        for at_s, one in ends_s:
            if at_s <= now_s + TOLERANCE_S:
                ended_s[one.drawn.job.id] = at_s
                active.remove(one)
        while waiting and waiting[0].drawn.job.submitted_s <= now_s:
            active.append(waiting.pop(0))
        _allocate(active, gpus, now_s, rules)
    total_s = gpus * now_s
    return summarize(
        [one.job for one in drawn],
        ended_s,
        policy="elasticflow",
        load=load,
        slo=slo,
        seed=seed,
        gpu_s={"busy": busy_s, "idle": total_s - busy_s - boot_s, "boot": boot_s},
        lookups_s=[one.job.lookup_gpu_s for one in drawn],
        end_s=now_s,
    )


def _work(one: Elastic, from_s: float, until_s: float, rules: LaneRules) -> None:
    """Take off the work done; connecting counts as done in proportion."""
    worked_s = until_s - max(from_s, one.ready_s)
    if not one.gpus or worked_s <= 0.0:
        return
    for name in ("predicted_gpu_s", "true_gpu_s"):
        left = getattr(one, name)
        share = min(1.0, worked_s / compute_tuning_s(left, one.gpus, rules)) if left > 0 else 0.0
        setattr(one, name, left * (1.0 - share))


def _allocate(active: list[Elastic], gpus: int, now_s: float, rules: LaneRules) -> None:
    """Minimum shares by deadline, the rest where it gains most."""
    active.sort(key=lambda one: (one.drawn.job.due_s, one.drawn.job.id))
    shares: dict[int, int] = {}
    late: list[Elastic] = []
    for one in active:
        share = _least_share(one, gpus, now_s, rules)
        if share is None:
            late.append(one)
        elif share:
            shares[id(one)] = share
            gpus -= share
    for one in late:
        # Past saving: whatever is left, so that it ends.
        share = min(max(1, one.gpus), gpus)
        if share:
            shares[id(one)] = share
            gpus -= share
    while gpus > 0:
        gains = [
            (
                one.end_s(now_s, shares[id(one)], rules, predicted=True)
                - one.end_s(now_s, shares[id(one)] + 1, rules, predicted=True),
                k,
            )
            for k, one in enumerate(active)
            if id(one) in shares
        ]
        gain, best = max(gains, default=(0.0, 0))
        if gain <= TOLERANCE_S:
            break
        shares[id(active[best])] += 1
        gpus -= 1
    for one in active:
        share = shares.get(id(one), 0)
        if share != one.gpus:
            one.gpus = share
            one.ready_s = now_s + one.boot_s


def _least_share(one: Elastic, gpus: int, now_s: float, rules: LaneRules) -> int | None:
    """The fewest GPUs that meet the deadline; 0 if it must wait, ``None`` if past saving.

    A gang that is running and in time keeps its size.
    """
    due_s = one.drawn.job.due_s
    keeps = 0 < one.gpus <= gpus
    if keeps and one.end_s(now_s, one.gpus, rules, predicted=True) <= due_s:
        return one.gpus
    for size in range(1, rules.max_gpus + 1):
        if one.end_s(now_s, size, rules, predicted=True) <= due_s:
            return size if size <= gpus else 0
    return None
