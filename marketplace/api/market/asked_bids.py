"""Bids as requests ask for them; the zones and data sets of several are found together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from marketplace.api.callers import Caller
from marketplace.api.market.fields import read_beat
from marketplace.api.market.owned import await_dataset_id, is_upload_id
from marketplace.api.market.requests import read_asked
from marketplace.auction.bidding.deadlines import settle_deadline
from marketplace.auction.bidding.measure import refuse_unknown_dataset
from marketplace.auction.bidding.place import NewBid, ensure_beginning
from marketplace.auction.bidding.resuming import RESUMED, find_price_left
from marketplace.auction.bidding.start_from import is_beginning_written
from marketplace.auction.bidding.terms import name_after
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.threads import run_in_thread
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import get_open_zone, get_zones_by_name
from marketplace.jobs.models import Dataset, Job
from marketplace.jobs.selectors import get_datasets
from marketplace.jobs.services import (
    check_held_out,
    ensure_dataset_tokens,
    is_dataset_counted,
    is_held_out_checked,
)
from marketplace.vendors.endpoint_quotes import EndpointQuote
from marketplace.vendors.endpoints import ask_for_bid

#: Members of a bid that name data sets.
DATASETS = ("dataset_id", "validation_dataset_id")
#: As a deadline: what ``settle_deadline`` cuts to the latest on sale, the same whenever it is sent.
AS_LATE_AS_CAN_BE = timedelta(days=999)


@dataclass(frozen=True, slots=True, eq=False)
class AskedBid:
    """A bid that names its zone and its data set."""

    #: The members of a ``BidRequest``, checked.
    body: Mapping[str, Any]
    caller: Caller
    idempotency_key: str | None
    #: What vendors' own systems quoted; ``None`` until they are asked.
    quotes: Mapping[str, EndpointQuote] | None = None


class FilesNotReadError(UserError):
    """A bid's data or the checkpoint that it begins with must be read before it is placed."""

    def __init__(self, new_bid: NewBid) -> None:
        super().__init__(
            "files_not_read", "Files of this bid changed meanwhile. Send it again.", status=503
        )
        self.new_bid = new_bid


def find_new_bids(asked: Sequence[AskedBid]) -> list[NewBid | Exception]:
    """Each bid with its zone and its data set, or what keeps it from being placed.

    A zone that is closed is found too, for a request that is sent again after its zone has closed.

    Returns
    -------
    list
        For each bid a ``NewBid``, the ``UserError`` that refuses it, or ``FilesNotReadError``
        where ``read_files`` is to be called first.
    """
    zones = get_zones_by_name({item.body["zone"] for item in asked})
    named = (item.body.get(name) for item in asked for name in DATASETS)
    datasets = get_datasets({dataset_id for dataset_id in named if dataset_id is not None})
    found: list[NewBid | Exception] = []
    for item in asked:
        try:
            new_bid = _build_new_bid(item, zones=zones, datasets=datasets)
        except UserError as error:
            found.append(error)
            continue
        found.append(new_bid if _has_read_files(new_bid) else FilesNotReadError(new_bid))
    return found


async def complete_bid(asked: AskedBid) -> AskedBid:
    """The bid with the data sets of its uploads and the quotes of vendors' own systems.

    Before it joins other bids: these must not wait for either.

    Raises
    ------
    UserError
        Those of ``await_dataset_id``.
    """
    for name in DATASETS:
        given = asked.body.get(name)
        if is_upload_id(given):
            find = partial(await_dataset_id, asked.caller.organisation, given, param=name)
            asked = replace(asked, body={**asked.body, name: await run_in_thread(find)})
    if asked.quotes is not None or asked.body.get("preparation") is None:
        return asked
    return await run_in_thread(lambda: _ask_vendors(asked))


def _ask_vendors(asked: AskedBid) -> AskedBid:
    [found] = find_new_bids([asked])
    new_bid = found.new_bid if isinstance(found, FilesNotReadError) else found
    if isinstance(new_bid, Exception):
        # Placing it says so.
        return asked
    quotes = ask_for_bid(
        zone=new_bid.zone,
        dataset=new_bid.dataset,
        preparation=new_bid.preparation,
        now=clock.now(),
    )
    return replace(asked, quotes=quotes)


def read_files(new_bid: NewBid) -> None:
    """Count the tokens of a bid's data for its zone, and write the adapter of a checkpoint.

    Each reads a whole file; bids that share a batch do not wait for it.
    """
    ensure_dataset_tokens(dataset=new_bid.dataset, zone=new_bid.zone)
    if new_bid.validation is not None:
        ensure_dataset_tokens(dataset=new_bid.validation, zone=new_bid.zone)
        check_held_out(dataset=new_bid.dataset, held_out=new_bid.validation)
    if not is_beginning_written(new_bid.model, organisation=new_bid.organisation):
        ensure_beginning(new_bid, now=clock.now())


def _has_read_files(new_bid: NewBid) -> bool:
    """Whether ``read_files`` need not read a file."""
    held_out = new_bid.validation
    if held_out is not None and not (
        is_dataset_counted(dataset=held_out, zone=new_bid.zone)
        and is_held_out_checked(dataset=new_bid.dataset, held_out=held_out)
    ):
        return False
    if not is_beginning_written(new_bid.model, organisation=new_bid.organisation):
        return False
    return is_dataset_counted(dataset=new_bid.dataset, zone=new_bid.zone)


def read_files_of_all(asked: Sequence[AskedBid]) -> None:
    """Read what is not read yet. What fails fails again when the bid is placed."""
    for found in find_new_bids(asked):
        if isinstance(found, FilesNotReadError):
            with suppress(Exception):
                read_files(found.new_bid)


def build_resumed_bid(job: Job, asked: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """The members of a ``BidRequest`` for the rest of a paused job.

    Raises
    ------
    Conflict, UserError
        As ``find_price_left``, where ``asked`` names no price.
    """
    price, deadline = asked.get("price"), asked.get("deadline")
    if deadline is None:
        deadline = job.deadline_at if job.deadline_at > now else AS_LATE_AS_CAN_BE
    return {
        "zone": job.zone.name,
        "dataset_id": job.dataset_id,
        "name": job.name,
        "adapter": {},
        "training": {},
        "model": RESUMED + job.pk,
        "price": find_price_left(job) if price is None else price,
        "deadline": deadline,
    }


def _build_new_bid(
    asked: AskedBid, *, zones: Mapping[str, Zone], datasets: Mapping[str, Dataset]
) -> NewBid:
    body, organisation = asked.body, asked.caller.organisation
    zone = zones.get(body["zone"]) or get_open_zone(body["zone"])
    dataset = datasets.get(body["dataset_id"])
    if dataset is None or dataset.organisation_id != organisation.pk:
        raise refuse_unknown_dataset()
    held_out_id = body.get("validation_dataset_id")
    validation = None if held_out_id is None else datasets.get(held_out_id)
    if held_out_id is not None and (
        validation is None or validation.organisation_id != organisation.pk
    ):
        raise refuse_unknown_dataset("validation_dataset_id")
    deadline = settle_deadline(body["deadline"], zone=zone, now=clock.now())
    if dataset.zone_id == zone.pk:
        dataset.zone = zone  # type: ignore[assignment]
    return NewBid(
        organisation=organisation,
        placed_by=asked.caller.user,
        api_key_id=asked.caller.key_id,
        zone=zone,
        dataset=dataset,
        validation=validation,
        name=body["name"] or name_after(dataset.name),
        price_micros=body["price"] or 0,
        beat=None if body.get("beat") is None else read_beat(body["beat"]),
        deadline_at=deadline.at,
        deadline_s=deadline.seconds,
        is_deadline_cut=deadline.is_cut,
        idempotency_key=asked.idempotency_key,
        quotes=asked.quotes or {},
        **read_asked(body),
    )
