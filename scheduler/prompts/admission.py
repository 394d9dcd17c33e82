"""Admission to the lane: a certified yes, a later SLO, or a no that says why.

Not in the paper, which takes every job and lets those that cannot be saved be late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from scheduler.prompts.jobs import TuningJob
from scheduler.prompts.planning import Promise, Round, plan_round
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.rules import LaneRules


class LaneAnswer(StrEnum):
    """What a lane says to a job."""

    #: The plan holds the SLO, and no promise given before is broken by it.
    CERTIFIED = "certified"
    #: A later SLO can be certified.
    LATER = "later"
    #: The SLO is shorter than the job takes on the largest gang that is warm and idle.
    TOO_SHORT = "too short"
    #: GPUs are there only after the longest SLO that the lane sells.
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to one job."""

    answer: LaneAnswer
    #: What the plan holds for it, with the SLO that is certified; ``None`` for a no.
    promise: Promise | None
    #: The plan that holds it and all earlier promises. Its growths must be carried out.
    plan: Round | None


def admit_job(
    job: TuningJob,
    promised: Mapping[str, Promise],
    pools: Mapping[str, WarmPool],
    cold: int,
    now_s: float,
    *,
    rules: LaneRules,
    stretches: Sequence[float] = (1.5, 2.0, 3.0, 5.0),
) -> Admission:
    """Answer a job with a plan of everything that is promised.

    Parameters
    ----------
    job : TuningJob
        With the SLO that its owner asks for.
    promised : mapping of str to Promise
        Jobs admitted that wait, by id, with the SLOs certified to them.
    pools, cold, now_s, rules
        As in :func:`~scheduler.prompts.planning.plan_round`.
    stretches : sequence of float
        Multiples of the SLO to try next, rising.

    Returns
    -------
    Admission
        ``CERTIFIED`` only if the plan with the job keeps it and all that were promised: a
        job with an early deadline may not push another over its own.
    """
    jobs = [promise.job for promise in promised.values()]
    for stretch in (1.0, *stretches):
        asked = replace(job, slo_s=job.slo_s * stretch)
        found = plan_round((*jobs, asked), pools, cold, now_s, rules=rules, held=promised)
        kept = {one.job.id: one for one in found.promises}
        if job.id in kept and promised.keys() <= kept.keys():
            answer = LaneAnswer.CERTIFIED if stretch == 1.0 else LaneAnswer.LATER
            return Admission(answer, kept[job.id], found)
    warm = WarmPool(job.base_model, 0.0, (now_s,) * rules.max_gpus)
    alone = plan_round((job,), {job.base_model: warm}, 0, now_s, rules=rules)
    return Admission(LaneAnswer.FULL if alone.promises else LaneAnswer.TOO_SHORT, None, None)
