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
import secrets
from datetime import datetime

from django.core.files.base import File
from django.db import transaction

from marketplace.checks import locks
from marketplace.checks.asking import find_checker
from marketplace.checks.models import CheckStatus, SpotCheck
from marketplace.common.errors import NotFound
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.services import suspend_node
from marketplace.jobs.services import discard_node_work
from marketplace.jobs.work import load_work_plan
from marketplace.payments.services import pay_for_check
from workers.protocol.checks import CheckResult, losses_agree
from workers.protocol.weight_sketch import weights_agree

log = logging.getLogger(__name__)


def record_check_result(*, node: Node, result: CheckResult, now: datetime) -> None:
    """Take a checker's answer, once and in time; of any other nothing is stored.

    Raises
    ------
    NotFound
        ``unknown_check``: nothing of the kind was asked of this node.
    """
    with transaction.atomic():
        check = locks.lock_check(token=result.token, checker=node)
        if check is None:
            raise NotFound("unknown_check", "This node was not asked that.")
        if check.status != CheckStatus.ASKED or check.expires_at is None or now > check.expires_at:
            return
        last = max((int(step) for step, _ in check.claimed), default=0)
        found = {row.step: row.loss for row in result.losses if check.from_step < row.step <= last}
        claimed = {int(step): loss for step, loss in check.claimed}
        check.weights_agree = _compare_weights(check, result)
        agrees = losses_agree(claimed, found)
        if check.weights_agree is not None:
            agrees = check.weights_agree and agrees is not False
        check.found = [[step, found[step]] for step in sorted(found)]
        check.answered_at = now
        check.status = {
            True: CheckStatus.AGREED,
            False: CheckStatus.DISAGREED,
            None: CheckStatus.UNANSWERED,
        }[agrees]
        check.save()
        # Jobs and nodes are locked before accounts, as settlement locks them.
        if agrees is False:
            _follow_up(check, now=now)
        if agrees is not None:
            done = last if check.weights_agree is None else max(last, check.end_step or 0)
            check.paid_micros = _pay(check, node, until_step=done, now=now)
            check.save(update_fields=["paid_micros"])


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


def _pay(check: SpotCheck, checker: Node, *, until_step: int, now: datetime) -> int:
    """The checker's ask for the work of the steps, counted by the market."""
    units = load_work_plan(check.job).count_between(check.from_step, until_step)
    amount = math.ceil(checker.ask_micros * units / checker.compute_capacity)
    pay_for_check(
        check_id=check.pk,
        organisation_id=checker.provider.organisation.pk,
        amount_micros=amount,
        now=now,
    )
    return amount


def _follow_up(check: SpotCheck, *, now: datetime) -> None:
    """Set the node aside, or ask for a second opinion. Call while holding the check."""
    assert check.checker is not None
    if check.confirms is not None or check.checker.provider.verified_at is not None:
        fail_node(check, now=now)
        return
    second = SpotCheck(
        zone=check.zone,
        job=check.job,
        slice=check.slice,
        node=check.node,
        confirms=check,
        from_step=check.from_step,
        end_step=check.end_step,
        sketch_seed=check.sketch_seed,
        start_sketch=check.start_sketch,
        end_sketch=check.end_sketch,
        sha256=check.sha256,
        bytes=check.bytes,
        token=secrets.token_urlsafe(32),
        created_at=now,
    )
    if find_checker(second, now=now) is None:
        log.error("check %s disagrees, and nobody else is there to confirm it", check.pk)
        return
    if check.file:
        with check.file.open("rb") as content:
            second.file.save("", File(content), save=False)
    second.save(force_insert=True)


def fail_node(check: SpotCheck, *, now: datetime) -> None:
    """Set the checked node aside; what it did of its running jobs is done again, and unpaid."""
    node = check.node
    told = "stored weights" if check.weights_agree is False else "reported losses"
    jobs = discard_node_work(
        node=node,
        reason=f"Node {node.name} {told} that another node did not find.",
        now=now,
    )
    if node.status != NodeStatus.LEFT:
        suspend_node(node=node, suspended_by=None, now=now)
    check.failed_at = now
    check.save(update_fields=["failed_at"])
    log.error("node %s failed check %s; %s jobs are planned again", node.pk, check.pk, len(jobs))
