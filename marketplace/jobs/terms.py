"""The columns that bids and jobs have of a job's terms."""

from __future__ import annotations

from typing import Any

from workers.protocol.job_terms import JobTerms

#: The value itself, and what queries join and filter on.
TERM_COLUMNS = ("terms", "dataset_id", "validation_dataset_id", "verified_only")


def derive_columns(terms: JobTerms) -> dict[str, Any]:
    """Give ``TERM_COLUMNS`` of a bid or of a job. Nothing else fills them."""
    values = (terms, terms.dataset, terms.validation, terms.verified_only)
    return dict(zip(TERM_COLUMNS, values, strict=True))
