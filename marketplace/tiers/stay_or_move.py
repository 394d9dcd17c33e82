"""Whether a job on serverless moves, and what the zone's allowance has to say about it.

The rule is ``scheduler.tiers.demotion.decide_demotion``, as in the simulator; this keeps its books
in the rows of stays and of the zone. Amounts are dollars times 3600, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from marketplace.tiers.models import Stay, ZoneTiers
from scheduler.tiers.allowance import compute_allowance
from scheduler.tiers.break_even import compute_move_cost
from scheduler.tiers.demotion import Budget, PossibleMove, decide_demotion

#: Columns of a stay that :func:`decide_stay` changes.
BOOKS = ("premium", "move_cost", "budget_s", "credit", "planned")


@dataclass(frozen=True, slots=True)
class MoveTarget:
    """A worker that a job could move to."""

    price_micros_per_h: int
    #: Expected seconds until it is ready.
    boot_s: float = 0.0


def decide_stay(
    *,
    tiers: ZoneTiers,
    stay: Stay,
    target: MoveTarget,
    left_s: float,
    expected_s: float,
    now: datetime,
) -> bool:
    """Whether a probed job should leave serverless for a worker; keeps the books of both.

    The caller saves them (:func:`save_stay_accounts`).

    Parameters
    ----------
    left_s
        Seconds it will run if it does not die.
    expected_s
        Mean seconds it will run (``scheduler.tiers.break_even.estimate_remaining_s``), or
        less where the worker would serve it for less.
    """
    serverless = stay.machine.price_micros_per_h / 1e6
    worker = target.price_micros_per_h / 1e6
    age_s = (now - stay.started_at).total_seconds()
    cost = compute_move_cost(
        tiers.checkpoint_s, tiers.restore_s, target.boot_s, 0.0, serverless, worker, 0.0
    )
    if stay.credit is None:
        premium = max(0.0, serverless - worker)
        _grant_allowance(tiers, stay, run_s=age_s + left_s, premium=premium, cost=cost)
    decision = decide_demotion(
        PossibleMove(
            expected_s=expected_s,
            age_s=age_s,
            boot_s=target.boot_s,
            serverless_price=serverless,
            worker_price=worker,
            cost=cost,
            delay_cost=(tiers.checkpoint_s + tiers.restore_s) * tiers.delay_usd_per_h,
            gpus=1.0,
        ),
        Budget(planned=stay.planned, surplus=tiers.surplus),
        tiers.rules.surplus_share,
    )
    stay.planned, tiers.surplus = decision.planned, decision.surplus
    return decision.leaves


def save_stay_accounts(stays: Sequence[Stay]) -> None:
    """Store what :func:`decide_stay` changed, in one statement."""
    if stays:
        Stay.objects.bulk_update(stays, BOOKS)


def settle_stay(*, tiers: ZoneTiers, stay: Stay, moved: bool, now: datetime) -> None:
    """Book what the stay really took."""
    if stay.credit is None:
        return
    spent = (now - stay.started_at).total_seconds() * stay.premium
    amount = spent + (stay.move_cost if moved else 0.0)
    tiers.surplus += stay.planned - amount
    stay.planned = amount
    stay.save(update_fields=["planned"])


def settle_death(*, tiers: ZoneTiers, job_id: str, run_s: float) -> None:
    """A job died early: Algorithm 1 would have spent less on it than was thought."""
    for stay in Stay.objects.filter(job=job_id, credit__isnull=False):
        true = compute_allowance(run_s, stay.budget_s, stay.premium, stay.move_cost)
        assert stay.credit is not None
        if true < stay.credit:
            tiers.surplus += true - stay.credit
            stay.credit = true
            stay.save(update_fields=["credit"])


def _grant_allowance(
    tiers: ZoneTiers, stay: Stay, *, run_s: float, premium: float, cost: float
) -> None:
    stay.premium, stay.move_cost, stay.budget_s = premium, cost, tiers.threshold_s
    # One allowance per job, however often it came back to serverless.
    again = Stay.objects.filter(job=stay.job_id, credit__gt=0.0).exists()
    credit = 0.0 if again else compute_allowance(run_s, tiers.threshold_s, premium, cost)
    stay.credit = credit
    tiers.surplus += credit
