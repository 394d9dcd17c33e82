"""Checkpoints and adapters from nodes: received whole, checked, and only under a current lease.

The bytes are spooled, hashed, checked and stored before any row is locked. The lease is looked at
before, to refuse early, and again under the lock, which decides: without it the stored file is
deleted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from django.conf import settings
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import QuerySet

from marketplace.common.errors import UserError
from marketplace.common.ids import new_id
from marketplace.fleet.models import Node
from marketplace.fleet.services import note_node_work
from marketplace.jobs.adapter_files import compose_adapter
from marketplace.jobs.journal import record_event
from marketplace.jobs.lease_checks import get_current_slice, lock_current_slice
from marketplace.jobs.models import Artifact, Checkpoint, EventKind, Job, MetricPoint
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.jobs.services.result_checks import check_pace
from marketplace.jobs.spooling import Content, spool_upload, store_file
from marketplace.jobs.upload_checks import check_adapter, check_checkpoint
from marketplace.jobs.work import load_job_totals

#: The newest is where a job goes on; should it prove useless, the one before it is.
CHECKPOINTS_KEPT = 3
CHECKPOINT_BYTES_MAX = 8 * 1024**3
ADAPTER_BYTES_MAX = 4 * 1024**3


def store_checkpoint(
    *,
    node: Node,
    lease_token: str,
    step: int,
    content: Content,
    now: datetime,
    sha256: str | None = None,
) -> Checkpoint:
    """Store a checkpoint of a leased job; older ones beyond the last few are dropped.

    The same file sent again is stored once; another file for the step takes its place.

    Raises
    ------
    LeaseLost
        Nothing is kept.
    UserError
        ``invalid_checkpoint``, ``file_empty``, ``file_too_large``, ``file_damaged`` or
        ``result_too_soon`` (503).
    """
    held = get_current_slice(lease_token=lease_token, node=node, now=now)
    if not 0 <= step <= load_job_totals(held.job).steps:
        raise UserError("invalid_checkpoint", f"Step {step} is not one of this job.")
    # Its node is paid up to there, however the slice ends.
    check_pace(held.job, held, step=step, now=now)
    limit = getattr(settings, "CHECKPOINT_BYTES_MAX", CHECKPOINT_BYTES_MAX)
    with spool_upload(content, limit_bytes=limit, what="The checkpoint", sha256=sha256) as upload:
        check_checkpoint(upload.file, size=upload.bytes)
        had = Checkpoint.objects.filter(slice=held, step=step, sha256=upload.sha256)
        if (same := had.exclude(file="").first()) is not None:
            return same
        path = f"jobs/{held.job_id}/checkpoints/{new_id('ckpt')}.safetensors"
        with store_file(path, upload.file) as name, transaction.atomic():
            job, held = lock_current_slice(lease_token=lease_token, node=node, now=now)
            checkpoint = Checkpoint.objects.filter(slice=held, step=step).first()
            if checkpoint is not None:
                _delete_on_commit(checkpoint.file.name)
                # Its adapter was another.
                Artifact.everything.filter(checkpoint=checkpoint).update(deleted_at=now)
            checkpoint = checkpoint or Checkpoint(job=job, slice=held, step=step)
            checkpoint.file.name = name
            checkpoint.sha256 = upload.sha256
            checkpoint.bytes = upload.bytes
            checkpoint.train_loss = job.train_loss
            checkpoint.valid_loss = _find_valid_loss(job, step)
            checkpoint.created_at = now
            checkpoint.save()
            # A job that ends before its next report counts this work: it may go on from here.
            held.last_step = max(held.last_step, step)
            held.save(update_fields=["last_step"])
            note_node_work(node=node)
            if step > job.checkpoint_step:
                job.checkpoint_step = step
                # What was saved is safe: earlier faults no longer threaten the job.
                job.system_faults = 0
                job.save(update_fields=["checkpoint_step", "system_faults"])
            record_event(
                job=job,
                kind=EventKind.CHECKPOINTED,
                message=f"Checkpoint stored at step {step}.",
                now=now,
                actor=node.pk,
                data={"checkpoint": checkpoint.pk, "step": step, "bytes": upload.bytes},
            )
            _prune_checkpoints(job)
    return checkpoint


def _find_valid_loss(job: Job, step: int) -> float | None:
    """The loss on held-out rows, where it was measured at this very step."""
    measured = MetricPoint.objects.filter(job=job, step=step, valid_loss__isnull=False)
    return measured.order_by("-pk").values_list("valid_loss", flat=True).first()


def store_adapter(
    *, node: Node, lease_token: str, content: Content, now: datetime, sha256: str | None = None
) -> Artifact:
    """Store the adapter of a leased job; sent again, it takes the first one's place.

    Of the node's file only the tensors are stored: the market writes all else of an adapter.

    Raises
    ------
    LeaseLost
        Nothing is kept.
    UserError
        ``invalid_adapter``, ``file_empty``, ``file_too_large``, ``file_damaged`` or
        ``base_unreachable`` (503).
    """
    held = get_current_slice(lease_token=lease_token, node=node, now=now)
    limit = getattr(settings, "ADAPTER_BYTES_MAX", ADAPTER_BYTES_MAX)
    with spool_upload(content, limit_bytes=limit, what="The adapter", sha256=sha256) as upload:
        digest = check_adapter(upload.file, size=upload.bytes, job=held.job)
        had = Artifact.objects.filter(slice=held, weights_sha256=digest)
        if (same := had.first()) is not None:
            return same
        path = f"jobs/{held.job_id}/adapters/{new_id('art')}.zip"
        with (
            compose_adapter(held.job, upload) as made,
            store_file(path, made.file) as name,
            transaction.atomic(),
        ):
            job, held = lock_current_slice(lease_token=lease_token, node=node, now=now)
            artifact = Artifact.objects.filter(job=job).first()
            if artifact is not None:
                _delete_on_commit(artifact.file.name)
            artifact = artifact or Artifact(job=job)
            artifact.file.name = name
            artifact.slice = held
            artifact.sha256, artifact.weights_sha256 = made.sha256, digest
            artifact.bytes = made.bytes
            artifact.created_at = now
            artifact.save()
            record_event(
                job=job,
                kind=EventKind.ADAPTER_STORED,
                message="The adapter is stored.",
                now=now,
                actor=node.pk,
                data={"bytes": made.bytes, "sha256": made.sha256},
            )
    return artifact


def set_aside_checkpoint(job: Job) -> None:
    """Drop the newest checkpoint of a locked job: it may be what every node fails on."""
    _drop(_list_own(job)[:1])
    _find_newest(job)


def discard_checkpoints_of(job: Job, node: Node) -> bool:
    """Drop a locked job's checkpoints that a node made; whether it goes on from an earlier one."""
    before = job.checkpoint_step
    _drop(_list_own(job).filter(slice__node=node))
    _find_newest(job)
    return job.checkpoint_step < before


def discard_checkpoints_after(job: Job, step: int, providers: Sequence[str]) -> None:
    """Drop a locked job's checkpoints of later steps that these providers' nodes made."""
    later = _list_own(job).filter(step__gt=step)
    _drop(later.filter(slice__node__provider__in=providers))
    _find_newest(job)
    job.save(update_fields=["checkpoint_step"])


def drop_checkpoints(job: Job) -> None:
    """Drop all checkpoints of a locked job: it begins again."""
    _drop(_list_own(job))
    job.checkpoint_step = 0


def _prune_checkpoints(job: Job) -> None:
    _drop(_list_own(job)[CHECKPOINTS_KEPT:])


def _list_own(job: Job) -> QuerySet[Checkpoint]:
    """Without the one that it was resumed from, which is the earlier job's."""
    return list_job_checkpoints(job).filter(job=job)


def _find_newest(job: Job) -> None:
    newest = list_job_checkpoints(job).first()
    job.checkpoint_step = 0 if newest is None else newest.step


def _drop(checkpoints: Iterable[Checkpoint]) -> None:
    """Keep the rows without their files."""
    for checkpoint in checkpoints:
        _delete_on_commit(checkpoint.file.name)
        checkpoint.file.name = ""
        checkpoint.save(update_fields=["file"])


def _delete_on_commit(name: str | None) -> None:
    if name:
        transaction.on_commit(partial(default_storage.delete, name), robust=True)
