"""Asking for an export: its price is held, and a node of the zone is asked to make it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, UserError
from marketplace.common.ids import new_id
from marketplace.common.locks import advisory_lock
from marketplace.exports.models import Export, ExportForm
from marketplace.exports.prices import compute_price
from marketplace.fleet.selectors import get_model_shape
from marketplace.jobs.models import Artifact, Checkpoint, ErrandKind, Job
from marketplace.jobs.services import note_adapter_use
from marketplace.jobs.tuned_models import TunedModel
from marketplace.payments.holds import HoldRequest, check_hold, place_holds
from workers.protocol.job_bytes import find_adapted
from workers.protocol.job_spec import AdapterKind

#: An export that no node could take is given up, and costs nothing.
GIVEN_UP_AFTER = timedelta(hours=1)


def ask_export(
    *,
    organisation: Organisation,
    asked_by: User | None,
    job: Job,
    form: ExportForm,
    now: datetime,
    checkpoint: Checkpoint | None = None,
    api_key_id: str | None = None,
) -> Export:
    """Hold the price of an adapter in a form, and have a node make it.

    With a checkpoint it is the adapter as it was then, in place of the finished one.

    One that is being made or is there is given again, and costs nothing.

    Raises
    ------
    Conflict
        ``no_adapter``: the job has not succeeded; ``unusable_checkpoint``.
    UserError
        ``unsupported_export``, or ``no_node`` (503).
    PaymentRequired
        ``insufficient_funds``.
    """
    if checkpoint is None and not Artifact.objects.filter(job=job).exists():
        raise Conflict("no_adapter", f"The job is {job.status}; it has no adapter to export.")
    check_exportable(job)
    price_micros = compute_price(job.zone, form)
    model = TunedModel(job, checkpoint)
    wanted = HoldRequest(
        organisation.pk,
        price_micros or 0,
        new_id("check"),
        placed_by_id=None if asked_by is None else asked_by.pk,
        api_key_id=api_key_id,
    )
    if model.find_artifact() is None:
        if price_micros is None:
            raise _no_node(job)
        check_hold(wanted=wanted, now=now)
    artifact = model.take_artifact(now=now)
    note_adapter_use(job_ids=[job.pk], now=now)
    # Two requests at once are one export.
    with advisory_lock("exports", f"{artifact.pk}:{form}", wait=True):
        existing = find_export(artifact, form)
        if existing is not None:
            return existing
        if price_micros is None:
            raise _no_node(job)
        export = Export(
            kind=ErrandKind.EXPORT,
            key=f"{artifact.pk}:{form}",
            organisation=organisation,
            asked_by=asked_by,
            zone=job.zone,
            verified_only=job.verified_only,
            job=job,
            artifact=artifact,
            form=form,
            price_micros=price_micros,
            created_at=now,
            gives_up_at=now + GIVEN_UP_AFTER,
        )
        request = replace(wanted, reference=export.hold_reference)
        [hold] = place_holds(wanted=[request], now=now)
        if isinstance(hold, UserError):
            raise hold
        export.save()
    return export


def _no_node(job: Job) -> UserError:
    return UserError(
        "no_node",
        f"No node of zone {job.zone.name} is online to make the file. Try again later.",
        status=503,
        extra={"retry": True},
    )


def check_exportable(job: Job) -> None:
    """Refuse adapters that have no other form.

    Raises
    ------
    UserError
        ``unsupported_export``.
    """
    adapter, shape = job.terms.adapter, get_model_shape(job.zone)
    is_lora = adapter.kind == AdapterKind.LORA
    if not is_lora or shape.encoder or job.zone.four_bit:
        only = "a LoRA of a base model that writes text, with whole weights,"
    elif any(part.experts > 1 for part in find_adapted(shape, adapter.target_modules)):
        only = "what does not sit beside the experts of a mixture"
    else:
        return
    raise UserError(
        "unsupported_export",
        f"Only {only} can be merged. Take the adapter as it is.",
        param="form",
    )


def find_export(artifact: Artifact, form: ExportForm) -> Export | None:
    """The export of an adapter that is being made or is there."""
    return Export.objects.filter(kind=ErrandKind.EXPORT, key=f"{artifact.pk}:{form}").first()
