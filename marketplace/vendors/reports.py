"""What a data set holds and what a preparation would do to it, counted before any bid."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from marketplace.common.durable.kinds import Failure, HeldWork
from marketplace.common.errors import UserError
from marketplace.jobs.models import Dataset
from marketplace.vendors.deliveries import copy_file
from marketplace.vendors.models import DataReport
from marketplace.vendors.plans import request_plan
from marketplace.vendors.preparing import inspect_in_process
from workers.protocol.job_terms import PreparationWish

#: A file that no program can read.
NO_REPORT: dict[str, Any] = {}


def load_raw_data(work: HeldWork) -> Dataset | None:
    """The data set, while it has no report."""
    return Dataset.objects.select_related("zone").filter(pk=work.key, report__isnull=True).first()


def inspect_data(_work: HeldWork, dataset: Dataset) -> dict[str, Any]:
    """Count what a preparation would find; ``NO_REPORT`` where the file cannot be read."""
    with tempfile.TemporaryDirectory(prefix="report-") as name:
        path = Path(name) / "raw"
        copy_file(dataset.file, path)
        try:
            return inspect_in_process(path, roles=dataset.roles)
        except UserError:
            return NO_REPORT


def store_report(
    _work: HeldWork, dataset: Dataset, report: dict[str, Any], *, now: datetime
) -> None:
    """Show the report, and have a plan made where a preparation would change something."""
    DataReport.objects.create(dataset=dataset, report=report)
    if report and dataset.zone is not None and count_trouble(report):
        request_plan(dataset=dataset, zone=dataset.zone, wish=PreparationWish(), now=now)


def fail_report(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """Leave it without a report once nothing more is tried."""
    if failure.retry_at is None and (found := load_raw_data(work)) is not None:
        DataReport.objects.create(dataset=found, report=NO_REPORT)


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
