"""Reading exports and pushes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from marketplace.common.downloads import FileDownload
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.exports.asking import check_exportable
from marketplace.exports.models import Export, ExportForm, ExportStatus, HubPush
from marketplace.exports.prices import compute_price
from marketplace.jobs.models import Job
from marketplace.jobs.services import note_adapter_use


def list_exports(job: Job) -> QuerySet[Export]:
    """All exports of a job's adapters."""
    return Export.objects.filter(job=job).select_related("artifact__checkpoint")


def get_export(job: Job, export_id: str) -> Export:
    """An export of a job.

    Raises
    ------
    NotFound
        ``unknown_export``.
    """
    export = list_exports(job).filter(pk=export_id.replace("\0", "")).first()
    if export is None:
        raise NotFound("unknown_export", f"The job has no export {export_id[:60]!r}.")
    return export


def open_export(export: Export, *, range_header: str | None, now: datetime) -> FileDownload:
    """The file of an export that is ready; to take it is to use the adapter.

    Raises
    ------
    Conflict
        ``export_not_ready``.
    """
    if export.status != ExportStatus.READY:
        raise Conflict(
            "export_not_ready", f"The export is {export.status}.", extra={"status": export.status}
        )
    note_adapter_use(job_ids=[export.job_id], now=now)
    return FileDownload(
        export.file.open("rb"),
        size=export.bytes,
        sha256=export.sha256,
        range_header=range_header,
        name=name_export_file(export),
    )


def name_export_file(export: Export) -> str:
    checkpoint = export.artifact.checkpoint
    model = export.job_id + ("" if checkpoint is None else f"-step-{checkpoint.step}")
    if export.form == ExportForm.MERGED:
        return f"{model}-merged.tar"
    return f"{model}-{export.form.removeprefix('gguf-')}.gguf"


@dataclass(frozen=True, slots=True)
class ExportChoice:
    """One form of an adapter, as its owner may have it."""

    form: ExportForm
    #: The newest that was asked for.
    export: Export | None
    #: ``None``: no node is online.
    price_micros: int | None


def list_export_choices(job: Job) -> list[ExportChoice]:
    """The forms that an adapter can be had in; none where it has no other."""
    try:
        check_exportable(job)
    except UserError:
        return []
    newest: dict[str, Export] = {}
    finished = Export.objects.filter(job=job, artifact__checkpoint=None)
    for export in finished.order_by("created_at", "pk"):
        newest[export.form] = export
    return [
        ExportChoice(form, newest.get(form), compute_price(job.zone, form)) for form in ExportForm
    ]


def list_pushes(job: Job) -> list[HubPush]:
    """The newest pushes of a job's adapter."""
    return list(HubPush.objects.filter(job=job).order_by("-created_at", "-pk")[:5])
