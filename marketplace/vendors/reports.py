"""What a data set holds and what a preparation would do to it, counted before any bid."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db.models import Q

from marketplace.common.errors import MarketFault, UserError
from marketplace.jobs.models import Dataset
from marketplace.vendors.models import DataReport, Preparation
from marketplace.vendors.plans import request_plan
from marketplace.vendors.preparing import inspect_in_process
from workers.protocol.job_terms import PreparationWish

log = logging.getLogger(__name__)

#: Older data sets get a report when they are bid for again, which uploads them again.
REPORTED_FOR = timedelta(days=1)
#: A report takes less; the worker that began it is gone.
LOST_AFTER = timedelta(minutes=10)
_COPY_BYTES = 1024 * 1024


def inspect_next(*, clock: Callable[[], datetime]) -> bool:
    """Make the report of the newest data set that has none; whether there was one."""
    now = clock()
    made_here = Preparation.objects.filter(prepared__isnull=False)
    # A worker that died left one begun and not made.
    is_due = Q(report__isnull=True) | Q(
        report__report__isnull=True, report__begun_at__lt=now - LOST_AFTER
    )
    dataset = (
        Dataset.objects.select_related("zone")
        .filter(is_due, created_at__gt=now - REPORTED_FOR)
        .exclude(pk__in=made_here.values("prepared"))
        .exclude(pk__in=made_here.filter(held_out__isnull=False).values("held_out"))
        .order_by("-created_at")
        .first()
    )
    if dataset is None:
        return False
    # The row is the claim: who makes it, or takes it over, makes the report.
    row, is_mine = DataReport.objects.get_or_create(dataset=dataset, defaults={"begun_at": now})
    lost = DataReport.objects.filter(pk=row.pk, report__isnull=True, begun_at__lt=now - LOST_AFTER)
    if not is_mine and not lost.update(begun_at=now):
        return True
    with tempfile.TemporaryDirectory(prefix="report-") as name:
        path = Path(name) / "raw"
        try:
            with dataset.file.open("rb") as stored, path.open("wb") as copy:
                while chunk := stored.read(_COPY_BYTES):
                    copy.write(chunk)
            row.report = inspect_in_process(path)
        except (UserError, MarketFault, OSError) as error:
            log.warning("no report on %s: %s", dataset.pk, error)
            row.report = {}
    DataReport.objects.filter(pk=row.pk).update(report=row.report)
    if row.report and dataset.zone is not None and count_trouble(row.report):
        request_plan(dataset=dataset, zone=dataset.zone, wish=PreparationWish(), now=now)
    return True


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One line of a report, for its owner."""

    label: str
    value: str
    #: A preparation would change something here.
    is_trouble: bool = False


def list_findings(report: Mapping[str, Any]) -> list[ReportLine]:
    """A report in words."""
    shortest, median, _, longest = report["chars"]
    duplicates = report["exact_duplicates"] + report["near_duplicates"]
    personal = ", ".join(
        f"{count:,} {kind.replace('_', ' ')}" for kind, count in report["personal_data"].items()
    )
    known = {name: rows for name, rows in report["languages"].items() if name != "?"}
    languages = ", ".join(f"{name} {rows:,}" for name, rows in list(known.items())[:4])
    seen = f"{report['rows']:,}" + ("" if report["is_complete"] else " looked at")
    return [
        ReportLine("Rows", seen),
        ReportLine("Characters a row", f"{shortest:,} to {longest:,}, half below {median:,}"),
        ReportLine("To repair", f"{report['rows_to_repair']:,}", report["rows_to_repair"] > 0),
        ReportLine("Beyond repair", f"{report['rows_unusable']:,}", report["rows_unusable"] > 0),
        ReportLine("Duplicates", f"{duplicates:,}", duplicates > 0),
        ReportLine("Repetitive", f"{report['repetitive_rows']:,}", report["repetitive_rows"] > 0),
        ReportLine("Languages", languages or "not certain", len(known) > 1),
        ReportLine("Personal data", personal or "none found", bool(personal)),
    ]


def count_trouble(report: Mapping[str, Any]) -> int:
    """Rows that a preparation would repair or leave out."""
    return (
        report["rows_to_repair"]
        + report["rows_unusable"]
        + report["exact_duplicates"]
        + report["near_duplicates"]
        + report["repetitive_rows"]
    )
