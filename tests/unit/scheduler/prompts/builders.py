"""Jobs and pools with round numbers: gangs connect at once and share work evenly."""

from __future__ import annotations

from scheduler.prompts.jobs import TuningJob
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.rules import LaneRules

#: No cost of gangs, no wait for a round.
EVEN = LaneRules(connect_s=0.0, exchange_share=0.0, round_s=0.0)
MODEL = "gpt2-base"


def make_job(
    name: str = "job",
    *,
    work_gpu_s: float = 100.0,
    slo_s: float = 60.0,
    submitted_s: float = 0.0,
    lookup_gpu_s: float = 0.0,
) -> TuningJob:
    return TuningJob(name, MODEL, submitted_s, slo_s, work_gpu_s, lookup_gpu_s)


def make_pools(*free_at_s: float, boot_s: float = 20.0) -> dict[str, WarmPool]:
    return {MODEL: WarmPool(MODEL, boot_s, free_at_s)}
