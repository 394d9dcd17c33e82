"""Whether a job on serverless moves, and what the zone's allowance has to say about it.

The rule is the simulator's (``scheduler.simulator.control.decide``) over the same functions of
``scheduler.tiers``: move if what is left repays the move; stay if the surplus over what
Algorithm 1 would have spent pays for staying. Amounts are dollars times 3600, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from marketplace.tiers.models import Stay, ZoneTiers
from scheduler.tiers.allowance import allowance, covers
from scheduler.tiers.break_even import break_even_s, move_cost, moves

#: One job may take this much of the surplus.
SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """A worker that a job could move to."""

    price_micros_per_h: int
    #: Expected seconds until it is ready.
    boot_s: float = 0.0


def stay_moves(
    *,
    tiers: ZoneTiers,
    stay: Stay,
    target: Target,
    left_s: float,
    expected_s: float,
    now: datetime,
) -> bool:
    """Whether a probed job should leave serverless for a worker; keeps the books of both.

    Parameters
    ----------
    left_s
        Seconds it will run if it does not die.
    expected_s
        Mean seconds it will run (``scheduler.tiers.break_even.expected_remaining_s``), or
        less where the worker would serve it for less.
    """
    serverless = stay.machine.price_micros_per_h / 1e6
    worker = target.price_micros_per_h / 1e6
    premium, boot_s = serverless - worker, target.boot_s
    age_s = (now - stay.started_at).total_seconds()
    cost = move_cost(
        tiers.checkpoint_s, tiers.restore_s, boot_s, 0.0, serverless, worker, delay_price=0.0
    )
    if stay.credit is None:
        _bring(tiers, stay, run_s=age_s + left_s, premium=max(0.0, premium), cost=cost)
    stay_plan = (age_s + expected_s) * premium
    if not moves(expected_s, boot_s, break_even_s(cost, serverless, worker)):
        _plan(tiers, stay, stay_plan)
        return False
    move_plan = (age_s + boot_s) * premium + cost
    _plan(tiers, stay, move_plan)
    delay = (tiers.checkpoint_s + tiers.restore_s) * tiers.delay_usd_per_h
    worth_s = break_even_s(cost + delay, serverless, worker)
    affordable = covers(tiers.surplus, stay_plan - move_plan, SHARE)
    if affordable and not moves(expected_s, boot_s, worth_s):
        _plan(tiers, stay, stay_plan)
        return False
    return True


def stay_leave(*, tiers: ZoneTiers, stay: Stay, moved: bool, now: datetime) -> None:
    """Book what the stay really took."""
    if stay.credit is None:
        return
    spent = (now - stay.started_at).total_seconds() * stay.premium
    _plan(tiers, stay, spent + (stay.move_cost if moved else 0.0))


def death_settle(*, tiers: ZoneTiers, job_id: str, run_s: float) -> None:
    """A job died early: Algorithm 1 would have spent less on it than was thought."""
    for stay in Stay.objects.filter(job=job_id, credit__isnull=False):
        true = allowance(run_s, stay.budget_s, stay.premium, stay.move_cost)
        assert stay.credit is not None
        if true < stay.credit:
            tiers.surplus += true - stay.credit
            stay.credit = true
            stay.save(update_fields=["credit"])


def _bring(tiers: ZoneTiers, stay: Stay, *, run_s: float, premium: float, cost: float) -> None:
    stay.premium, stay.move_cost, stay.budget_s = premium, cost, tiers.threshold_s
    # One allowance per job, however often it came back to serverless.
    again = Stay.objects.filter(job=stay.job_id, credit__gt=0.0).exists()
    credit = 0.0 if again else allowance(run_s, tiers.threshold_s, premium, cost)
    stay.credit = credit
    tiers.surplus += credit
    stay.save(update_fields=["premium", "move_cost", "budget_s", "credit"])


def _plan(tiers: ZoneTiers, stay: Stay, amount: float) -> None:
    """Debit what the stay is now planned to cost instead of what it was before."""
    if amount != stay.planned:
        tiers.surplus += stay.planned - amount
        stay.planned = amount
        stay.save(update_fields=["planned"])
