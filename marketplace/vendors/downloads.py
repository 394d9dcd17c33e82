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
    preparation = find_preparation(job)
    # Before that it says what its owner has not paid for.
    is_accepted = preparation is not None and preparation.status == PreparationStatus.ACCEPTED
    if preparation is None or not preparation.changes or not is_accepted:
        raise NotFound("no_changes", "No vendor has delivered a list of changes for this job.")
    return FileDownload(
        preparation.changes.open("rb"),
        size=preparation.changes.size,
        # Written once.
        sha256=preparation.pk,
        range_header=range_header,
        content_type="application/jsonl",
        name=f"{name}-changes.jsonl",
    )
