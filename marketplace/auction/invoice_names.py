"""What the lines of an invoice say of the things that were paid."""

from __future__ import annotations

from collections.abc import Collection

from marketplace.auction.models import hold_reference
from marketplace.auction.selectors import find_paid_bids
from marketplace.exports.models import REFERENCE_PREFIX as EXPORT_PREFIX
from marketplace.questions.models import REFERENCE_PREFIX

ANSWERS = "Answers of models"
EXPORTS = "Adapters in other forms"


def name_references(references: Collection[str]) -> dict[str, str]:
    """Each job by its name and bid; all answers of models by one name, to stand in one line."""
    named = {reference: ANSWERS for reference in references if _is_answer(reference)}
    named |= {reference: EXPORTS for reference in references if reference.startswith(EXPORT_PREFIX)}
    bids = find_paid_bids(one for one in references if one.startswith(hold_reference("")))
    return named | {reference: f"{bid.name}, {bid.pk}" for reference, bid in bids.items()}


def _is_answer(reference: str) -> bool:
    return reference.startswith(REFERENCE_PREFIX)
