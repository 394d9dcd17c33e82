"""The columns that bids and jobs have of a job's terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workers.protocol.job_terms import JobTerms

#: The value itself, and what queries join and filter on.
TERM_COLUMNS = (
    "terms",
    "dataset_id",
    "validation_dataset_id",
    "verified_only",
    "resumed_job_id",
)


def derive_columns(terms: JobTerms) -> dict[str, Any]:
    """Give ``TERM_COLUMNS`` of a bid or of a job. Nothing else fills them."""
    resumed = None if terms.resumes is None else terms.resumes.job_id
    values = (terms, terms.dataset, terms.validation, terms.verified_only, resumed)
    return dict(zip(TERM_COLUMNS, values, strict=True))


def strip_texts(terms: JobTerms) -> JobTerms:
    """The same without what the owner wrote: what is left says which work was sold."""
    kept = strip_data(terms)
    return replace(kept, adapter=replace(kept.adapter, init_text=""), metadata=None)


def strip_data(terms: JobTerms) -> JobTerms:
    """The same without what the owner wrote of the data and of their rows."""
    wish = terms.preparation
    if wish is None:
        return terms
    return replace(terms, preparation=replace(wish, instructions="", roles={}, gold={}))
