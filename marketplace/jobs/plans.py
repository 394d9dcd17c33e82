"""Building the plan a node gets, and handing it to the node's queue."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from celery import current_app
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from kombu.exceptions import OperationalError

from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import base_model_ref, slot_ends_at, slot_starts_at
from marketplace.jobs import locks, selectors
from marketplace.jobs.models import Dataset, Job, NodePlan, Slice
from marketplace.jobs.selectors import DATASET_BLOB, VALIDATION_BLOB
from workers.protocol.messages import (
    TASK_RUN_SLOT,
    AdapterSpec,
    BlobRef,
    CheckpointRef,
    DataFormat,
    JobSpec,
    SliceSpec,
    SlotPlan,
    TrainingSpec,
)
from workers.protocol.wire import from_json, to_json

logger = logging.getLogger(__name__)

BLOB_PATH = "/internal/v1/leases/{lease_token}/blobs/{name}"


def slot_plan(
    *, zone: Zone, node: Node, slot: int, slices: Iterable[Slice], revision: int
) -> SlotPlan:
    """What a node runs in a slot, the slices in order of their opening."""
    return SlotPlan(
        node_id=node.pk,
        slot=slot,
        starts_at=slot_starts_at(zone, slot).timestamp(),
        ends_at=slot_ends_at(zone, slot).timestamp(),
        revision=revision,
        slices=tuple(
            _slice_spec(zone, held) for held in sorted(slices, key=lambda s: (s.opened_at, s.pk))
        ),
    )


def _slice_spec(zone: Zone, held: Slice) -> SliceSpec:
    checkpoint = selectors.checkpoint_newest(held.job)
    resume_from = None
    if checkpoint is not None:
        resume_from = CheckpointRef(
            blob=BlobRef(
                url=BLOB_PATH.format(lease_token=held.lease_token, name=checkpoint.pk),
                sha256=checkpoint.sha256,
                bytes=checkpoint.bytes,
            ),
            step=checkpoint.step,
        )
    return SliceSpec(
        lease_token=held.lease_token,
        lease_expires_at=held.lease_expires_at.timestamp(),
        job=_job_spec(zone, held.job, held.lease_token),
        resume_from=resume_from,
    )


def _job_spec(zone: Zone, job: Job, lease_token: str) -> JobSpec:
    validation = job.validation_dataset
    return JobSpec(
        job_id=job.pk,
        base_model=base_model_ref(zone),
        data_format=DataFormat(job.dataset.format),
        dataset=_dataset_ref(job.dataset, lease_token, DATASET_BLOB),
        validation_dataset=(
            None if validation is None else _dataset_ref(validation, lease_token, VALIDATION_BLOB)
        ),
        skip_lines=tuple(job.dataset.faulty_lines),
        adapter=from_json(AdapterSpec, job.spec["adapter"]),
        training=from_json(TrainingSpec, job.spec["training"]),
        checkpoint_every_s=zone.checkpoint_every_s,
    )


def _dataset_ref(dataset: Dataset, lease_token: str, name: str) -> BlobRef:
    return BlobRef(
        url=BLOB_PATH.format(lease_token=lease_token, name=name),
        sha256=dataset.sha256,
        bytes=dataset.bytes,
    )


def plans_latest(zone: Zone) -> dict[str, NodePlan]:
    """The plan each node was last given, by node id."""
    plans = NodePlan.objects.filter(node__zone=zone).order_by("node_id", "-slot", "-revision")
    return {plan.node_id: plan for plan in plans.distinct("node_id")}


def plan_record(
    *,
    zone: Zone,
    node: Node,
    slot: int,
    slices: list[Slice],
    latest: NodePlan | None,
    now: datetime,
) -> NodePlan | None:
    """Keep the node's plan if it differs from the latest. Call under the zone's dispatch lock.

    A node that goes on without work is not told so again.
    """
    tokens = sorted(held.lease_token for held in slices)
    same_slot = latest is not None and latest.slot == slot
    told = [] if latest is None else latest.lease_tokens
    if told == tokens and (same_slot or not tokens):
        return None
    revision = latest.revision + 1 if latest is not None and same_slot else 1
    plan = slot_plan(zone=zone, node=node, slot=slot, slices=slices, revision=revision)
    return NodePlan.objects.create(
        node=node,
        slot=slot,
        revision=revision,
        plan=to_json(plan),
        lease_tokens=tokens,
        ends_at=slot_ends_at(zone, slot),
        made_at=now,
    )


def plans_send(*, now: datetime) -> tuple[NodePlan, ...]:
    """Send what was recorded and not sent yet, each node's latest only.

    A process that dies between sending and noting it sends again: a node takes the same plan twice
    as once. A broker that is down leaves the plans for the next beat.
    """
    later = NodePlan.objects.filter(node=OuterRef("node")).filter(
        Q(slot__gt=OuterRef("slot")) | Q(slot=OuterRef("slot"), revision__gt=OuterRef("revision"))
    )
    waiting = NodePlan.objects.filter(~Exists(later), sent_at__isnull=True, ends_at__gt=now)
    sent: list[NodePlan] = []
    with transaction.atomic():
        for plan in locks.unsent_plans_lock(waiting.values_list("pk", flat=True)):
            try:
                current_app.send_task(  # type: ignore[operator]
                    TASK_RUN_SLOT,
                    kwargs={"plan": plan.plan},
                    queue=plan.node.queue,
                    expires=(plan.ends_at - now).total_seconds(),
                )
            except (OperationalError, OSError) as error:
                logger.warning("plan %s of %s waits: %s", plan.slot, plan.node_id, error)
                continue
            plan.sent_at = now
            plan.save(update_fields=["sent_at"])
            sent.append(plan)
    return tuple(sent)
