"""What a finished slice must show before its job counts as done.

A result is a node's word. What can be known here without training is asked here; what cannot is
measured by another node (``checks.scores``).
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime, timedelta

from django.conf import settings

from marketplace.common.errors import UserError
from marketplace.fleet.models import Node
from marketplace.jobs.models import Job, Slice
from marketplace.jobs.work import load_job_totals, load_work_plan
from workers.protocol.reports import SliceResult

#: How many times faster than in its self-test a node may be. Those on busy machines find a fourth
#: of the speed; noise takes no time at all.
PACE_MOST = 8


def check_result(job: Job, held: Slice, result: SliceResult, now: datetime) -> None:
    """Refuse a result without what training leaves behind; call while holding the slice.

    Where nothing is checked (``SPOT_CHECK_SHARE`` is 0), nor is this.

    Raises
    ------
    UserError
        ``result_too_soon`` (503: the same result is taken later), ``progress_missing`` or
        ``loss_missing``. Nothing was changed.
    """
    if not settings.SPOT_CHECK_SHARE:
        return
    check_pace(job, held, step=result.step, now=now)
    done = load_work_plan(job).count_between(held.first_step, result.step)
    if done and not held.last_seq:
        raise UserError(
            "progress_missing",
            "No step of this slice was reported. Report progress, then the result.",
            status=409,
        )
    # By it the result can be measured again.
    if load_job_totals(job).valid_rows and result.valid_loss_after is None:
        raise UserError(
            "loss_missing",
            "Rows are held out of this job. Report the loss on them after the last step.",
            status=409,
        )


def check_pace(job: Job, held: Slice, *, step: int, now: datetime) -> None:
    """Refuse a result or a checkpoint whose steps the node cannot have done yet.

    Raises
    ------
    UserError
        ``result_too_soon``, as ``check_result``.
    """
    if not settings.SPOT_CHECK_SHARE:
        return
    done = load_work_plan(job).count_between(held.first_step, step)
    early_by = compute_least_time(held.node, done) - (now - held.opened_at)
    if early_by > timedelta(0):
        raise UserError(
            "result_too_soon",
            f"This is more than {PACE_MOST} times as fast as the node's self-test. Send it again "
            f"in {early_by.total_seconds():.0f} s.",
            status=503,
        )


def find_believed_step(job: Job, held: Slice, *, now: datetime) -> int:
    """The last step that was reported, or an earlier one where the node cannot be so far yet."""
    if not settings.SPOT_CHECK_SHARE or held.last_step <= held.first_step:
        return held.last_step
    plan, took = load_work_plan(job), now - held.opened_at
    steps = range(held.first_step + 1, held.last_step + 1)
    return held.first_step + bisect_right(
        steps,
        took,
        key=lambda step: compute_least_time(held.node, plan.count_between(held.first_step, step)),
    )


def compute_least_time(node: Node, units: int) -> timedelta:
    """The shortest time in which a node is believed to do work units.

    Its reports raise the speed that it is sold at, and so do not count here.
    """
    speed = min(node.self_test_speed, node.compute_capacity / node.zone.slot_s)
    return timedelta(seconds=units / (PACE_MOST * speed))
