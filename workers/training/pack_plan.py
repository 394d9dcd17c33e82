"""Who puts how much into the next pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Packs are padded to a multiple of this, so that shapes repeat: kernels are chosen and
#: compiled by shape.
PAD_TO = {"cpu": 16, "cuda": 256}


@dataclass(frozen=True, slots=True)
class PackRequest:
    """What is left of one job's batch."""

    job_id: str
    #: Tokens of each example still to come, in order; at least one.
    tokens: tuple[int, ...]
    #: Round in which the job was last in a pack.
    served: int
    #: Most tokens it may put in at once.
    most_tokens: int | None = None


def plan_pack(waiting: Sequence[PackRequest], *, token_budget: int) -> dict[str, int]:
    """How many examples each job puts into the next pack.

    Everyone gets an equal share of the tokens; what small batches leave free goes to the
    others (water-filling). When not even one example of each fits, those who waited
    longest come first. The first of them gets in however long its example is, so no job
    waits without end.

    Returns
    -------
    dict
        Examples by job, at least one each; their tokens are at most ``token_budget``
        together, unless there is only one job with only one example.
    """
    left = token_budget
    chosen: list[PackRequest] = []
    for job in sorted(waiting, key=lambda job: job.served):
        if chosen and job.tokens[0] > left:
            continue
        left -= job.tokens[0]
        chosen.append(job)
    chosen.sort(key=lambda job: sum(job.tokens))
    # ``left`` is what remains once everyone has one example
    takes: dict[str, int] = {}
    for index, job in enumerate(chosen):
        first, *others = job.tokens
        quota = max(left, 0) // (len(chosen) - index)
        if job.most_tokens is not None:
            quota = min(quota, max(0, job.most_tokens - first))
        extra = count_fitting(others, quota)
        takes[job.job_id] = 1 + extra
        left -= sum(others[:extra])
    return takes


def count_fitting(tokens: Sequence[int], most: int) -> int:
    """How many of the first examples have at most ``most`` tokens together."""
    total = 0
    for count, size in enumerate(tokens):
        total += size
        if total > most:
            return count
    return len(tokens)
