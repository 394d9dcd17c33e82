"""Exports as errands: a node makes the file, it is checked, stored and paid for once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.files.storage import default_storage
from django.db import transaction

from marketplace.common.errors import UserError
from marketplace.exports.composing import compose_export
from marketplace.exports.models import Export, ExportForm
from marketplace.exports.prices import estimate_seconds
from marketplace.fleet.selectors import build_base_model_ref
from marketplace.jobs.errands import ErrandHandler, build_blob_ref, register_handler
from marketplace.jobs.models import Artifact, ErrandKind, ErrandState
from marketplace.jobs.spooling import SpooledFile
from marketplace.payments.holds import HoldSettlement, settle_holds
from marketplace.payments.services import CostSplit, Share, charge_and_distribute
from workers.protocol.export_check import ExportFileError
from workers.protocol.exports import ExportTask

#: A node has ten times the seconds that it is paid for, and some more to send the file.
_PATIENCE, _PATIENCE_LEAST = 10, timedelta(minutes=10)
#: Files are large and can be made again: they are deleted after this.
KEPT_FOR = timedelta(days=7)
_ADAPTER = "adapter"
_GAVE_UP = "No node could make it. Nothing was paid; ask for it again later."


class ExportErrands(ErrandHandler[Export]):
    kind = ErrandKind.EXPORT
    model = Export
    related = ("artifact",)

    @property
    def file_bytes_max(self) -> int:
        return settings.EXPORT_BYTES_MAX

    @contextmanager
    def compose_file(self, errand: Export, upload: SpooledFile) -> Iterator[SpooledFile]:
        """Refuse what is no export of the form: ``invalid_export``."""
        with ExitStack() as stack:
            try:
                made = stack.enter_context(compose_export(errand, upload))
            except ExportFileError as error:
                raise UserError("invalid_export", f"This is no export: {error}.") from None
            yield made

    def find_blob(self, errand: Export, name: str) -> Artifact | None:
        return errand.artifact if name == _ADAPTER else None

    def compute_patience(self, errand: Export) -> timedelta:
        seconds = estimate_seconds(errand.zone, ExportForm(errand.form))
        return _PATIENCE_LEAST + timedelta(seconds=_PATIENCE * seconds)

    def build_task(self, errand: Export) -> ExportTask:
        return ExportTask(
            base_model=build_base_model_ref(errand.zone),
            adapter=build_blob_ref(errand, _ADAPTER, errand.artifact),
            form=errand.form,
        )

    def fail(self, errand: Export, *, now: datetime) -> None:
        errand.key, errand.reason = None, errand.reason or _GAVE_UP
        settle_holds(settlements=[HoldSettlement(errand.hold_reference, None)], now=now)

    def pay(self, errand: Export, *, now: datetime) -> int:
        """The whole price goes to the provider whose node made the file."""
        assert errand.node is not None
        amount, reference = errand.price_micros, errand.hold_reference
        payee = errand.node.provider.organisation_id  # type: ignore[attr-defined]
        split = CostSplit(
            asks_micros=amount, asks_returned_micros=0, shares=(Share(payee, amount),)
        )
        charge_and_distribute(hold_reference=reference, charge_micros=amount, split=split, now=now)
        return amount


register_handler(ExportErrands())


def delete_old_files(*, now: datetime) -> None:
    """Delete files that are old; their forms can be asked for again."""
    over = Export.objects.filter(state=ErrandState.DONE, ended_at__lte=now - KEPT_FOR)
    for export in over.exclude(file="")[:100]:
        with transaction.atomic():
            transaction.on_commit(partial(default_storage.delete, export.file.name), robust=True)
            export.key, export.file.name = None, ""
            export.save(update_fields=["key", "file"])
