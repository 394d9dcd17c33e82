"""Judging a checker's answer: the checker is paid, and a node that two opinions contradict fails.

The market pays the checker out of its revenue: its own ask for the work units of the steps.
One opinion against a node sets it aside only where its provider is one that the operator verified;
otherwise a node of a third provider is asked. Without one, the operator sees the disagreement.
A node that fails is suspended. Its work on running jobs does not count, and the jobs go on from the
last checkpoint of another node.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime, timedelta
from fractions import Fraction

from django.core.files.base import File

from marketplace.checks.checkers import build_confirmation, find_checker
from marketplace.checks.models import FaultCheck, SpotCheck
from marketplace.common.money import MAX_MICROS
from marketplace.fleet.models import NodeStatus
from marketplace.fleet.services import suspend_node
from marketplace.jobs.executed_work import measure_executed_work
from marketplace.jobs.services import discard_node_work
from marketplace.jobs.work import load_work_plan
from marketplace.payments.services import pay_for_check
from workers.protocol.checks import CheckResult, losses_agree, score_agrees
from workers.protocol.weight_sketch import weights_agree

log = logging.getLogger(__name__)

#: Of what a job's work costs its owner, the most that measuring its result or a fault check earns:
#: the share that spot checks of steps cost, too.
PAY_SHARE = Fraction(1, 50)
#: A result that no node could measure by then counts as it was reported: its owner waits.
SCORE_GIVEN_UP_AFTER = timedelta(minutes=6)


def judge_result(check: SpotCheck, result: CheckResult, *, now: datetime) -> bool:
    """Compare what a checker found with what the node said; ``False``: it says nothing of it.

    A friend of the node could say that it cannot measure: another one is asked then.
    """
    check.agrees = _compare(check, result)
    if check.agrees is False:
        _follow_up(check, now=now)
    return check.agrees is not None


def _compare(check: SpotCheck, result: CheckResult) -> bool | None:
    """Note what was found; whether it is what the node said, ``None`` where nothing is known."""
    if check.claimed_score is not None:
        check.found_score = result.score
        return score_agrees(check.claimed_score, result.score)
    last = _find_last_claimed(check)
    found = {row.step: row.loss for row in result.losses if check.from_step < row.step <= last}
    claimed = {int(step): loss for step, loss in check.claimed}
    check.weights_agree = _compare_weights(check, result)
    check.found = [[step, found[step]] for step in sorted(found)]
    agrees = losses_agree(claimed, found)
    if check.weights_agree is None:
        return agrees
    return check.weights_agree and agrees is not False


def _find_last_claimed(check: SpotCheck) -> int:
    return max((int(step) for step, _ in check.claimed), default=0)


def _compare_weights(check: SpotCheck, result: CheckResult) -> bool | None:
    """Whether what the node stored is what its steps lead to; ``None``: nothing is known of it."""
    if check.end_step is None or not result.sketch:
        return None
    if not check.end_sketch:
        # What it stored cannot be read, or has no numbers.
        return False
    if check.file and not check.start_sketch:
        return None
    start = check.start_sketch if check.file else None
    return weights_agree(start=start, end=check.end_sketch, found=result.sketch)


def pay_checker(check: SpotCheck, *, now: datetime) -> int:
    """Pay the checker's ask for the work of the steps or of an evaluation, counted by the market.

    An evaluation earns a small share of what the job costs its owner at most: owners can bring
    such checks about, and may be the checker's friends.
    """
    plan = load_work_plan(check.job)
    if check.claimed_score is not None:
        units = plan.evaluation_units
        paid = check.job.price_micros * measure_executed_work(check.job).share
        most = math.floor(paid * PAY_SHARE)
    else:
        last = _find_last_claimed(check)
        done = last if check.weights_agree is None else max(last, check.end_step or 0)
        units, most = plan.count_between(check.from_step, done), MAX_MICROS
    return pay_for_units(check, units=units, most_micros=most, now=now)


def pay_for_units(
    check: SpotCheck | FaultCheck, *, units: int, most_micros: int, now: datetime
) -> int:
    """Pay the checker its own ask for work units, within a limit; micro-dollars."""
    checker = check.node
    assert checker is not None
    amount = min(most_micros, math.ceil(checker.ask_micros * units / checker.compute_capacity))
    pay_for_check(
        check_id=check.pk,
        organisation_id=checker.provider.organisation.pk,
        amount_micros=amount,
        now=now,
    )
    return amount


def _follow_up(check: SpotCheck, *, now: datetime) -> None:
    """Set the node aside, or ask for a second opinion. Call while holding the check."""
    assert check.node is not None
    if check.confirms is not None or check.node.provider.verified_at is not None:
        _fail_node(check, now=now)
        return
    second = build_confirmation(
        check,
        now=now,
        end_step=check.end_step,
        sketch_seed=check.sketch_seed,
        start_sketch=check.start_sketch,
        end_sketch=check.end_sketch,
        claimed_score=check.claimed_score,
        sha256=check.sha256,
        bytes=check.bytes,
        gives_up_at=None if check.claimed_score is None else now + SCORE_GIVEN_UP_AFTER,
    )
    if find_checker(second, now=now) is None:
        log.error("check %s disagrees, and no other provider is online to confirm it", check.pk)
        return
    if check.file:
        with check.file.open("rb") as content:
            second.file.save("", File(content), save=False)
    second.save(force_insert=True)


def _fail_node(check: SpotCheck, *, now: datetime) -> None:
    """Set the checked node aside; what it did of its running jobs is done again, and unpaid."""
    node = check.checked_node
    claim = "stored weights" if check.weights_agree is False else "reported losses"
    if check.claimed_score is not None:
        claim = "reported a loss on held-out rows"
    reason = f"Node {node.name} {claim} that another node did not find."
    jobs = discard_node_work(node=node, reason=reason, now=now)
    if node.status != NodeStatus.LEFT:
        suspend_node(node=node, suspended_by=None, reason=reason, now=now)
    check.failed_at = now
    log.error("node %s failed check %s; %s jobs are planned again", node.pk, check.pk, len(jobs))
