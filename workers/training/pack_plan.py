"""Who puts how much into the next pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Packs are padded to a multiple of this, so that shapes repeat: kernels are chosen and
#: compiled by shape.
PAD_TO = {"cpu": 16, "cuda": 256}
#: What a pack lacks of its tokens is left free below this share: a job that fills it would have to
#: wait for one more pack.
_WORTH_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class PackRequest:
    """What is left of one job's batch."""

    job_id: str
    #: Tokens of each example still to come, in order.
    tokens: tuple[int, ...]
    #: Round in which the job was last in a pack.
    served: int
    #: Most tokens it may put in at once.
    most_tokens: int | None = None
    #: Tokens of its batch that are in packs already.
    begun_tokens: int = 0


def choose_turn(
    waiting: Sequence[PackRequest], *, parts: int, token_budget: int
) -> tuple[list[PackRequest], int]:
    """Whose turn it is, and how many tokens its pack has.

    Where a pass has several parts, so many packs must be in flight, and a job's next batch begins
    when its last one is through. So jobs take turns, a batch is finished once it is begun, and
    between two batches of a job lie enough packs of others: with fewer jobs than parts, batches are
    cut. Packs have about as many tokens each, or parts would wait for the largest.

    Parameters
    ----------
    waiting : sequence of PackRequest
        Of all jobs that train, also those whose batches are in packs already.
    token_budget : int
        Most tokens of a pack.
    """
    left = [one for one in waiting if one.tokens]
    if parts == 1 or not left:
        return left, token_budget
    together = max(1, len(waiting) // parts)
    groups = -(-len(waiting) // together)
    cuts = -(-(parts - 1) // max(1, groups - 1))
    total = sum(one.begun_tokens + sum(one.tokens) for one in waiting)
    budget = min(token_budget, -(-total // (groups * cuts)))
    chosen: list[PackRequest] = []
    free = float(budget)
    for one in sorted(left, key=lambda one: (not one.begun_tokens, one.served)):
        if len(chosen) >= together and free < _WORTH_SHARE * budget:
            break
        chosen.append(one)
        free -= sum(one.tokens)
    return chosen, budget


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
