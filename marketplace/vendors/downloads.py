"""What a vendor delivered, as a download; the pages and the API give the same."""

from __future__ import annotations

from marketplace.common.downloads import FileDownload
from marketplace.common.errors import NotFound
from marketplace.jobs.models import Job
from marketplace.vendors.models import PreparationStatus
from marketplace.vendors.selectors import find_preparation


def download_changes(*, job: Job, name: str, range_header: str | None) -> FileDownload:
    """Every row that was changed or left out, with the reason, one JSON object a line.

    Raises
    ------
    NotFound
        The job's data were not prepared, or the list is not there or not accepted yet.
    """
    return _download(job, "changes", name=name, range_header=range_header)


def download_origins(*, job: Job, name: str, range_header: str | None) -> FileDownload:
    """The row id of each prepared row: its place in the owner's file, one JSON object a line.

    Raises
    ------
    NotFound
        As ``download_changes``.
    """
    return _download(job, "origins", name=name, range_header=range_header)


def _download(job: Job, which: str, *, name: str, range_header: str | None) -> FileDownload:
    preparation = find_preparation(job)
    # Before that it says what its owner has not paid for.
    is_accepted = preparation is not None and preparation.status == PreparationStatus.ACCEPTED
    file = getattr(preparation, which) if is_accepted else None
    if preparation is None or not file:
        raise NotFound(f"no_{which}", f"No vendor has delivered {which} of rows for this job.")
    return FileDownload(
        file.open("rb"),
        size=file.size,
        # Written once.
        sha256=f"{preparation.pk}-{which}",
        range_header=range_header,
        content_type="application/jsonl",
        name=f"{name}-{which}.jsonl",
    )
