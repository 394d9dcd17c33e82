"""What becomes of an export: its file is checked, stored and paid for once, or it is released."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.files.storage import default_storage
from django.db import transaction

from marketplace.common.errors import NotFound, UserError
from marketplace.exports.asking import ATTEMPTS_MAX, GIVEN_UP_AFTER
from marketplace.exports.locks import lock_export
from marketplace.exports.models import Export, ExportStatus
from marketplace.fleet.models import Node
from marketplace.jobs.spooling import Content, spool_upload, store_file
from marketplace.payments.holds import HoldSettlement, settle_holds
from marketplace.payments.services import CostSplit, Share, distribute_charge
from workers.protocol.exports import ExportFileError, ExportRefusal, check_export_file
from workers.protocol.reports import Fault

#: Files are large and can be made again: they are deleted after this.
KEPT_FOR = timedelta(days=7)
_REASON_CHARS = 500
_GAVE_UP = "No node could make it. Nothing was paid; ask for it again later."


def store_export(
    *, node: Node, token: str, content: Content, now: datetime, sha256: str | None = None
) -> Export:
    """Store a node's file and pay its provider, once; the same file sent again changes nothing.

    Raises
    ------
    NotFound
        ``unknown_export``: this node was not asked for it, or is too late. Nothing is kept.
    UserError
        ``invalid_export``, ``file_empty``, ``file_too_large`` or ``file_damaged``.
    """
    export = Export.objects.filter(token=token, node=node).first()
    if export is None:
        raise _unknown()
    limit = settings.EXPORT_BYTES_MAX
    with spool_upload(content, limit_bytes=limit, what="The export", sha256=sha256) as upload:
        try:
            check_export_file(upload.file, form=export.form)
        except ExportFileError as error:
            raise UserError("invalid_export", f"This is no export: {error}.") from None
        if export.status == ExportStatus.READY and export.sha256 == upload.sha256:
            return export
        path = f"jobs/{export.job_id}/exports/{export.pk}"
        with store_file(path, upload.file) as name, transaction.atomic():
            held = lock_export(pk=export.pk)
            if held is None or not _is_due(held, node, now):
                raise _unknown()
            held.file.name, held.sha256, held.bytes = name, upload.sha256, upload.bytes
            held.status, held.finished_at = ExportStatus.READY, now
            held.save()
            _pay(held, now=now)
    return held


def _is_due(export: Export, node: Node, now: datetime) -> bool:
    is_in_time = export.expires_at is not None and now < export.expires_at
    return export.status == ExportStatus.ASKED and export.node_id == node.pk and is_in_time


def _unknown() -> NotFound:
    return NotFound("unknown_export", "This node was not asked for that, or its time is over.")


def _pay(export: Export, *, now: datetime) -> None:
    """The whole price goes to the provider whose node made the file."""
    assert export.node is not None
    amount = export.price_micros
    settle_holds(settlements=[HoldSettlement(export.hold_reference, amount)], now=now)
    payee = export.node.provider.organisation_id  # type: ignore[attr-defined]
    split = CostSplit(asks_micros=amount, asks_returned_micros=0, shares=(Share(payee, amount),))
    distribute_charge(hold_reference=export.hold_reference, split=split, now=now)


def refuse_export(*, node: Node, refusal: ExportRefusal, now: datetime) -> None:
    """Take a node's word that it cannot make an export: another is asked, unless none could.

    Raises
    ------
    NotFound
        ``unknown_export``.
    """
    with transaction.atomic():
        export = lock_export(token=refusal.token, node=node)
        if export is None:
            raise _unknown()
        if not _is_due(export, node, now):
            return
        if refusal.fault is Fault.USER:
            reason = refusal.reason.replace("\0", "")[:_REASON_CHARS]
            _fail(export, reason or _GAVE_UP, now=now)
        else:
            _try_again(export, now=now)


def _try_again(export: Export, *, now: datetime) -> None:
    if export.attempts >= ATTEMPTS_MAX:
        _fail(export, _GAVE_UP, now=now)
        return
    export.status = ExportStatus.WAITING
    export.save(update_fields=["status"])


def _fail(export: Export, reason: str, *, now: datetime) -> None:
    export.status, export.reason, export.finished_at = ExportStatus.FAILED, reason, now
    export.save(update_fields=["status", "reason", "finished_at"])
    settle_holds(settlements=[HoldSettlement(export.hold_reference, None)], now=now)


def sweep_exports(*, now: datetime) -> None:
    """Ask again for exports of silent nodes, give up old ones, and delete old files."""
    late = Export.objects.filter(status=ExportStatus.ASKED, expires_at__lte=now)
    old = Export.objects.filter(status=ExportStatus.WAITING, created_at__lte=now - GIVEN_UP_AFTER)
    for pk in [*late.values_list("pk", flat=True), *old.values_list("pk", flat=True)]:
        with transaction.atomic():
            export = lock_export(pk=pk)
            if export is None or export.status not in Export.OPEN:
                continue
            if export.created_at <= now - GIVEN_UP_AFTER:
                _fail(export, _GAVE_UP, now=now)
            elif export.expires_at is not None and export.expires_at <= now:
                _try_again(export, now=now)
    over = Export.objects.filter(status=ExportStatus.READY, finished_at__lte=now - KEPT_FOR)
    for pk in list(over.values_list("pk", flat=True)[:100]):
        with transaction.atomic():
            export = lock_export(pk=pk, status=ExportStatus.READY)
            if export is not None:
                transaction.on_commit(
                    partial(default_storage.delete, export.file.name), robust=True
                )
                export.status, export.file.name = ExportStatus.EXPIRED, ""
                export.save(update_fields=["status", "file"])
