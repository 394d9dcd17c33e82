"""Asking for an export: its price is held, and a node of the zone is asked to make it."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.locks import advisory_lock
from marketplace.exports.locks import lock_export
from marketplace.exports.models import Export, ExportForm, ExportStatus
from marketplace.exports.prices import compute_price, estimate_seconds
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import (
    build_base_model_ref,
    get_model_shape,
    list_trusted_nodes,
)
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.plans import add_to_plan
from marketplace.jobs.selectors import find_idlest_node
from marketplace.payments.holds import HoldRequest, place_holds
from workers.protocol.exports import ExportSpec
from workers.protocol.job_spec import AdapterKind, BlobRef

BLOB_PATH = "/internal/v1/exports/{token}/adapter"
ATTEMPTS_MAX = 3
#: A node has so many times the seconds that it is paid for, and some more to send the file.
_PATIENCE, _PATIENCE_LEAST = 10, timedelta(minutes=10)
#: An export that no node could take is given up, and costs nothing.
GIVEN_UP_AFTER = timedelta(hours=1)


def ask_export(
    *,
    organisation: Organisation,
    asked_by: User | None,
    job: Job,
    form: ExportForm,
    now: datetime,
    api_key_id: str | None = None,
) -> Export:
    """Hold the price of an adapter in a form, and have a node make it.

    One that is being made or is there is given again, and costs nothing.

    Raises
    ------
    Conflict
        ``no_adapter``: the job has not succeeded.
    UserError
        ``unsupported_export``, or ``no_node`` (503).
    PaymentRequired
        ``insufficient_funds``.
    """
    if not Artifact.objects.filter(job=job).exists():
        raise Conflict("no_adapter", f"The job is {job.status}; it has no adapter to export.")
    check_exportable(job)
    price_micros = compute_price(job.zone, form)
    # Two requests at once are one export.
    with advisory_lock("exports", f"{job.pk}:{form}", wait=True):
        existing = find_export(job, form)
        if existing is not None:
            return existing
        if price_micros is None:
            raise UserError(
                "no_node",
                f"No node of zone {job.zone.name} is online to make the file. Try again later.",
                status=503,
                extra={"retry": True},
            )
        export = Export(
            organisation=organisation,
            asked_by=asked_by,
            zone=job.zone,
            job=job,
            form=form,
            token=secrets.token_urlsafe(32),
            price_micros=price_micros,
            created_at=now,
        )
        request = HoldRequest(
            organisation.pk,
            price_micros,
            export.hold_reference,
            placed_by_id=export.asked_by_id,
            api_key_id=api_key_id,
        )
        [hold] = place_holds(wanted=[request], now=now)
        if isinstance(hold, UserError):
            raise hold
        export.save(force_insert=True)
    return export


def check_exportable(job: Job) -> None:
    """Refuse adapters that have no other form.

    Raises
    ------
    UserError
        ``unsupported_export``.
    """
    zone = job.zone
    is_lora = job.spec["adapter"].get("kind", AdapterKind.LORA) == AdapterKind.LORA
    if not is_lora or get_model_shape(zone).encoder or zone.four_bit:
        raise UserError(
            "unsupported_export",
            "Only a LoRA of a base model that writes text, with whole weights, can be merged. "
            "Take the adapter as it is.",
            param="form",
        )


def find_export(job: Job, form: ExportForm) -> Export | None:
    """The export of a job that is being made or is there."""
    live = (*Export.OPEN, ExportStatus.READY)
    return Export.objects.filter(job=job, form=form, status__in=live).first()


def hand_out_exports(*, now: datetime) -> int:
    """Ask nodes for exports that wait; how many were asked for."""
    waiting = Export.objects.filter(status=ExportStatus.WAITING).order_by("created_at", "pk")
    return sum(_ask(export_id, now) for export_id in list(waiting.values_list("pk", flat=True)))


def _ask(export_id: str, now: datetime) -> bool:
    with transaction.atomic():
        export = lock_export(pk=export_id, status=ExportStatus.WAITING)
        node = None if export is None else find_maker(export, now=now)
        if export is None or node is None:
            return False
        seconds = estimate_seconds(export.zone, ExportForm(export.form))
        export.node = node  # pyright: ignore[reportAttributeAccessIssue]
        export.status = ExportStatus.ASKED
        export.attempts += 1
        export.expires_at = now + _PATIENCE_LEAST + timedelta(seconds=_PATIENCE * seconds)
        # A dispatch at the same moment would make a plan without the question.
        with advisory_lock("jobs.dispatch", export.zone_id, wait=True):
            if not add_to_plan(export.zone, node, "exports", _build_spec(export), now=now):
                return False
            export.save()
    return True


def find_maker(export: Export, *, now: datetime) -> Node | None:
    """A node that is there: the idlest, and another one than was asked last where there is one."""
    nodes = list_trusted_nodes(export.zone, verified_only=export.job.verified_only)
    return find_idlest_node(nodes, last_asked_id=export.node_id, now=now)


def _build_spec(export: Export) -> ExportSpec:
    artifact: Artifact = export.job.artifact  # type: ignore[attr-defined]
    assert export.expires_at is not None
    return ExportSpec(
        token=export.token,
        expires_at=export.expires_at.timestamp(),
        base_model=build_base_model_ref(export.zone),
        adapter=BlobRef(
            url=BLOB_PATH.format(token=export.token),
            sha256=artifact.sha256,
            bytes=artifact.bytes,
        ),
        form=export.form,
    )


def was_asked(*, node: Node, token: str) -> bool:
    """Whether a node makes an export, or made it: its answer may come twice."""
    return Export.objects.filter(token=token, node=node).exists()


def find_export_blob(*, node: Node, token: str, now: datetime) -> Artifact:
    """The adapter of an export that a node makes now.

    Raises
    ------
    NotFound
        ``unknown_blob``.
    """
    held = Export.objects.filter(
        token=token, node=node, status=ExportStatus.ASKED, expires_at__gt=now
    )
    export = held.select_related("job__artifact").first()
    if export is None:
        raise NotFound("unknown_blob", "This node makes no such export.")
    return export.job.artifact  # type: ignore[attr-defined]
