"""The latency budget of a lookup, and what a job takes with and without one (section 4.4.3)."""

from __future__ import annotations

from scheduler.prompts.jobs import Course, TuningJob
from scheduler.prompts.rules import LaneRules


def affords_lookup(job: TuningJob, budget_s: float) -> bool:
    """Whether one GPU ends the lookup within the budget; a job without a bank has none."""
    return 0.0 < job.lookup_gpu_s <= budget_s


def compute_printed_budget_s(job: TuningJob, rules: LaneRules) -> float:
    """The paper's budget: a share of the whole SLO, seconds."""
    return rules.lookup_share * job.slo_s


def predict_course(job: TuningJob, looks_up: bool, rules: LaneRules, *, shared: bool) -> Course:
    """Predict an upper bound of the job's run.

    Parameters
    ----------
    job : TuningJob
        Its work is the bound without a lookup.
    looks_up : bool
        Whether a lookup comes first and shortens the run by ``predicted_gain``.
    rules : LaneRules
        ``predicted_gain``.
    shared : bool
        Whether the gang shares the lookup (every GPU scores its part of the candidates).
        In the paper one GPU does it while the others wait.
    """
    if not looks_up:
        return Course(False, job.work_gpu_s, 0.0)
    tuning = job.work_gpu_s / rules.predicted_gain
    if shared:
        return Course(True, tuning + job.lookup_gpu_s, 0.0)
    return Course(True, tuning, job.lookup_gpu_s)
