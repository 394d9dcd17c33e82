"""From a checked request body to a bid as the auction takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marketplace.api.callers import Caller
from marketplace.auction.bidding.place import NewBid
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import get_open_zone
from marketplace.jobs.models import Dataset


def zone_of(body: Mapping[str, Any], zones: Mapping[str, Zone]) -> Zone:
    """The zone a body names; a closed one too, for whoever sends an earlier bid again.

    Raises
    ------
    NotFound
        ``unknown_zone``, with the names there are.
    """
    return zones.get(body["zone"]) or get_open_zone(body["zone"])


def dataset_choice_check(body: Mapping[str, Any]) -> None:
    """Refuse a bid without a data set, or with two.

    Raises
    ------
    UserError
        ``dataset_required``.
    """
    if (body.get("dataset_id") is None) == (body.get("file") is None):
        raise UserError(
            "dataset_required",
            "Name a data set with dataset_id, or send one as the part 'file' of a multipart form; "
            "one of the two.",
            param="dataset_id",
        )


def asked_of(
    body: Mapping[str, Any], *, who: Caller, key: str | None, zone: Zone, dataset: Dataset
) -> NewBid:
    return NewBid(
        organisation=who.organisation,
        placed_by=who.user,
        zone=zone,
        dataset=dataset,
        name=body["name"] or dataset.name,
        adapter=body["adapter"],
        training=body["training"],
        price_micros=body["price"],
        deadline_at=body["deadline"],
        idempotency_key=key,
    )
