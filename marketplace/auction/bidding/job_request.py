"""What an owner asks to have trained, before any of it is checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from marketplace.accounts.models import Organisation
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.vendors.offers import check_gold
from marketplace.vendors.plans import resolve_wish
from marketplace.vendors.wishes import parse_wish
from scheduler.types import Beat
from workers.protocol.job_terms import PreparationWish


@dataclass(frozen=True, slots=True, eq=False)
class JobRequest:
    """A job that a bid, a quote or an express request is about."""

    organisation: Organisation
    zone: Zone
    dataset: Dataset
    adapter: Mapping[str, Any]
    training: Mapping[str, Any]
    #: Whose rows are held out; ``None``: a share of the data set's own.
    validation: Dataset | None = None
    #: What a vendor is to do with the data first; ``None``: they are trained on as they are.
    preparation: Mapping[str, Any] | None = None
    #: What it begins with, such as ``ft:`` and one of the owner's jobs; empty: the base model.
    model: str = ""
    #: Nodes of verified providers only; ``None``: as the organisation has it.
    verified_only: bool | None = None
    #: The owner's own pairs of texts.
    metadata: Mapping[str, str] | None = None
    #: Of a deadline that was asked for as a time from now: that time.
    deadline_s: float | None = None
    #: That time lies beyond what is on sale.
    is_deadline_cut: bool = False

    def parse_wish(self) -> PreparationWish | None:
        """What is asked of a preparation, with the settings of the plan that it names.

        Raises
        ------
        UserError
            ``invalid_preparation`` or those of ``resolve_wish``.
        """
        if self.preparation is None:
            return None
        wish = parse_wish(self.preparation)
        check_gold(wish, dataset=self.dataset)
        return resolve_wish(wish, dataset=self.dataset)

    @property
    def request_hash(self) -> str:
        """SHA-256 of what is asked for; the same rows, uploaded again, are the same request."""
        request = self.write_terms()
        request["dataset"] = self.dataset.sha256
        request["validation"] = None if self.validation is None else self.validation.sha256
        request.pop("idempotency_key", None)
        if request.pop("beat", None) is not None:
            # Sent again, it may name a later one.
            request["asks_price"] = True
        if self.deadline_s is not None:
            # Asked for again it would be another moment.
            request.pop("deadline_at", None)
        return hash_request(request)

    def write_terms(self) -> dict[str, Any]:
        """Write what is asked for as plain JSON values, rows by their ids: every field of it."""
        return {
            each.name: _write_term(getattr(self, each.name))
            for each in fields(self)
            if each.name not in _BESIDES
        }


#: Fields that a request of the API names as they are here; it names the others by id or name.
ASKED_AS_IS = frozenset(each.name for each in fields(JobRequest)) - {
    "organisation",
    "zone",
    "dataset",
    "validation",
    "deadline_s",
    "is_deadline_cut",
}
#: Who asks, how it is paid, and what is found out: no part of what is asked for.
_BESIDES = frozenset(
    {"organisation", "placed_by", "card_payment_id", "quotes", "api_key_id", "is_deadline_cut"}
)


def _write_term(value: Any) -> Any:
    match value:
        case Zone() | Dataset():
            return value.pk
        case datetime():
            return value.isoformat()
        case Mapping():
            return dict(value)
        case Beat():
            return [value.slot, value.part]
        case _:
            return value


def hash_request(request: Mapping[str, Any]) -> str:
    """SHA-256 of what is asked for; the order of the fields does not matter."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
