"""A slice ends with its job done, if all of the work is done or the job may stop early."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.errors import UserError
from marketplace.fleet import services as fleet
from marketplace.jobs.models import Artifact, EventKind, Job, JobStatus, Slice, SliceStatus
from marketplace.jobs.services.life import close_slice, drop_start, end_job, mark_for_replan
from marketplace.jobs.services.result_checks import check_result
from marketplace.jobs.services.uploads import drop_checkpoints
from marketplace.jobs.transitions import set_status
from marketplace.jobs.work import load_job_totals, load_work_plan
from workers.protocol.reports import SliceResult
from workers.protocol.starts import Drop


def apply_finished(job: Job, held: Slice, result: SliceResult, now: datetime) -> None:
    """End a slice, and its job with it. Call while holding both.

    Raises
    ------
    UserError
        ``work_missing`` or ``adapter_missing``: the job is not done; or as ``check_result``.
        Nothing was changed.
    """
    _check_all_done(job, result)
    check_result(job, held, result, now)
    if not Artifact.objects.filter(job=job, slice=held).exists():
        raise UserError(
            "adapter_missing",
            "A job is finished when its adapter is stored. Upload the adapter, then report again.",
            status=409,
        )
    close_slice(
        held,
        status=SliceStatus.FINISHED,
        reason=result.reason,
        now=now,
        counted_step=result.step,
    )
    fleet.note_node_work(node=held.node)
    if _is_above_target(job, result):
        _begin_again(job, result, now)
        return
    job.stopped_early, job.best_step = result.stopped_early, result.best_step
    end_job(
        job=job,
        status=JobStatus.SUCCEEDED,
        kind=EventKind.SUCCEEDED,
        message=_describe_end(result),
        now=now,
        data={
            "step": job.step,
            "first_train_loss": job.first_train_loss,
            "last_train_loss": job.train_loss,
            "valid_loss_before": job.valid_loss_before,
            "valid_loss_after": job.valid_loss,
        },
    )


def _check_all_done(job: Job, result: SliceResult) -> None:
    """Refuse an end before all of the work is done.

    A job may stop early where its settings say so, a warm start where it reached its target loss.
    """
    planned = load_job_totals(job).steps
    if result.step == result.total_steps == planned:
        return
    if result.stopped_early and _may_stop_early(job, result):
        return
    if _has_reached_target(job, result):
        return
    raise UserError(
        "work_missing",
        f"A job is finished when all of its {planned} steps are done. "
        f"This result says {result.step} of {result.total_steps}.",
        status=409,
    )


def _is_above_target(job: Job, result: SliceResult) -> bool:
    """Whether a warm start ends without having been at its target loss.

    A run from the base model might have been there, so its result is not the owner's. A loss that
    the owner asked for is enough in any case.
    """
    start, loss = job.start, result.valid_loss_after
    if start is None or not start.sold_steps or start.target_loss is None:
        return False
    return loss is None or loss > max(start.target_loss, job.terms.training.target_loss)


def _begin_again(job: Job, result: SliceResult, now: datetime) -> None:
    """Have a job that began warm run cold, at no cost to its owner; the nodes' work counts."""
    drop_start(
        job=job,
        why=Drop.FELL_BEHIND,
        message=(
            f"After all {result.step} steps the validation loss is not as low as a run from the "
            "base model may end. The job begins again with the base model, at no cost to you."
        ),
        now=now,
    )
    drop_checkpoints(job)
    job.step, job.samples_done, job.epoch, job.total_steps = 0, 0, 0.0, None
    job.eta_at = job.first_train_loss = job.train_loss = job.valid_loss = None
    set_status(job, JobStatus.MOVING)
    job.save()
    mark_for_replan(job=job, reason="It begins again without its warm start.", now=now)


def _describe_end(result: SliceResult) -> str:
    if not result.stopped_early:
        return "Finished; the adapter is ready."
    if result.best_step is None:
        return f"Ended after step {result.step} of {result.total_steps}, at its target score."
    return (
        f"Stopped early after step {result.step} of {result.total_steps}: the validation loss fell "
        f"no further. The adapter has the weights of step {result.best_step}."
    )


def _may_stop_early(job: Job, result: SliceResult) -> bool:
    """Whether the settings let a job end there.

    It is at its target score, or as many evaluations as they name lie between the best step and the
    last.
    """
    patience, plan = job.terms.training.early_stopping, load_work_plan(job)
    best, loss = result.best_step, result.valid_loss_after
    target = job.terms.training.target_loss
    # Without a target no loss is low enough, whatever a node says it is.
    if target > 0 and loss is not None and loss <= target:
        return 0 < result.step < plan.total_steps and plan.is_evaluated_at(result.step)
    if not patience or best is None or not 0 <= best < result.step < plan.total_steps:
        return False
    if not (plan.is_evaluated_at(best) and plan.is_evaluated_at(result.step)):
        return False
    return plan.count_evaluations(result.step) - plan.count_evaluations(best) >= patience


def _has_reached_target(job: Job, result: SliceResult) -> bool:
    start, loss = job.start, result.valid_loss_after
    if start is None or start.target_loss is None or loss is None:
        return False
    if not result.step >= start.sold_steps > 0:
        return False
    is_end = result.step == start.sold_steps
    evaluated = is_end or load_work_plan(job).is_evaluated_at(result.step)
    return evaluated and loss <= start.target_loss
