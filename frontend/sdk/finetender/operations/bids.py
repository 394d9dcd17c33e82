"""Prices of jobs, and bids for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Unpack

from finetender.calls import Call, Operation, Pause, draw_key, send
from finetender.deadlines import write_deadline
from finetender.errors import build_error
from finetender.operations.data import (
    LOOK_EVERY_S,
    Data,
    check_id,
    choose_zone,
    find_dataset_id,
    list_zones,
)
from finetender.terms import JobTerms
from finetender.values import Bid, Quote, Sweep

Deadline = str | datetime | timedelta
#: For a warm start, while a node compares some rows. The market gives that up after ten seconds.
ASK_AGAIN = 30


class SweepTerms(JobTerms, total=False):
    """What several jobs have in common beside their data, price and deadline."""

    all_or_none: bool


def get_quote(
    data: Data,
    *,
    deadline: Deadline,
    zone: str | None = None,
    validation: Data | None = None,
    warm_start: bool = False,
    **terms: Unpack[JobTerms],
) -> Operation[Quote]:
    """What a job would cost now, and by deadline; it reserves nothing.

    Parameters
    ----------
    validation
        Whose rows are held out; without it, a share of the data's own.
    warm_start
        Look for an adapter to begin with, which takes some seconds. Bid with the quote's ``model``
        to use what was found.
    terms
        See ``JobTerms``; what is left out, the market chooses.
    """
    body = yield from _build_work(data, zone, deadline, validation, terms)
    body["warm_start"] = warm_start
    answer = yield from send(Call("POST", "/api/quotes", json=body))
    for _ in range(ASK_AGAIN):
        if answer.body["warm_start"]["outlook"] != "asked":
            break
        yield Pause(LOOK_EVERY_S)
        answer = yield from send(Call("POST", "/api/quotes", json=body))
    return Quote.read(answer.body, dataset_id=body["dataset_id"])


def place_bid(
    data: Data,
    *,
    price: str | float | Decimal,
    deadline: Deadline,
    name: str | None = None,
    zone: str | None = None,
    validation: Data | None = None,
    idempotency_key: str | None = None,
    **terms: Unpack[JobTerms],
) -> Operation[Bid]:
    """Bid for a job, and wait until the bid is decided.

    Parameters
    ----------
    price
        The most the job is worth, in dollars. What is paid does not depend on it.
    validation
        Whose rows are held out; without it, a share of the data's own.
    terms
        See ``JobTerms``; what is left out, the market chooses.

    Raises
    ------
    BidRefusedError
        With the price that would have won.
    """
    body = yield from _build_work(data, zone, deadline, validation, terms)
    body["price"] = str(price)
    if name is not None:
        body["name"] = name
    return (yield from _send_bid("/api/bids", body, idempotency_key))


def resume_job(
    job_id: str,
    *,
    price: str | float | Decimal | None = None,
    deadline: Deadline | None = None,
    idempotency_key: str | None = None,
) -> Operation[Bid]:
    """Bid for the rest of a paused job, and wait until the bid is decided.

    The job of the bid goes on from the paused job's last checkpoint.

    Parameters
    ----------
    price
        The most the rest is worth, in dollars; without it, what the first bid leaves.
    deadline
        Without it, the paused job's; once that has passed, the latest on sale.

    Raises
    ------
    BidRefusedError
        With the price that would have won.
    """
    body: dict[str, Any] = {}
    if price is not None:
        body["price"] = str(price)
    if deadline is not None:
        body["deadline"] = write_deadline(deadline)
    path = f"/api/jobs/{check_id(job_id)}/resume"
    return (yield from _send_bid(path, body, idempotency_key))


def _send_bid(path: str, body: dict[str, Any], idempotency_key: str | None) -> Operation[Bid]:
    """Place a bid under a key, and wait until it is decided."""
    key = idempotency_key or draw_key()
    answer = yield from send(Call("POST", path, json=body, idempotency_key=key))
    bid = Bid.read(answer.body)
    while bid.status == "pending":
        yield Pause(LOOK_EVERY_S)
        bid = yield from get_bid(bid.id)
    if bid.status == "refused":
        decision = bid.raw["decision"]
        told = {**decision, "detail": decision["reason_text"], "bid": bid.raw}
        raise build_error(402, told)
    return bid


def get_bid(bid_id: str) -> Operation[Bid]:
    answer = yield from send(Call("GET", f"/api/bids/{check_id(bid_id)}"))
    return Bid.read(answer.body)


def cancel_bid(bid_id: str) -> Operation[Bid]:
    """Take a bid back that is not decided yet."""
    answer = yield from send(Call("POST", f"/api/bids/{check_id(bid_id)}/cancel", json={}))
    return Bid.read(answer.body)


def _build_work(
    data: Data,
    zone_name: str | None,
    deadline: Deadline,
    validation: Data | None,
    terms: JobTerms,
) -> Operation[dict[str, Any]]:
    """What a quote and a bid have in common; data that is a file is stored first."""
    zone = choose_zone((yield from list_zones()), zone_name)
    return {
        **{name: value for name, value in terms.items() if value not in (None, "")},
        "zone": zone.name,
        "dataset_id": (yield from find_dataset_id(data, zone.name)),
        "deadline": write_deadline(deadline),
        "validation_dataset_id": None
        if validation is None
        else (yield from find_dataset_id(validation, zone.name)),
    }


def place_sweep(
    data: Data,
    *,
    sweep: Mapping[str, Sequence[Any]],
    price: str | float | Decimal,
    deadline: Deadline,
    name: str | None = None,
    zone: str | None = None,
    validation: Data | None = None,
    idempotency_key: str | None = None,
    **terms: Unpack[SweepTerms],
) -> Operation[Sweep]:
    """Bid for a job for each combination of some settings, and wait until all are decided.

    Parameters
    ----------
    sweep
        Values by setting, such as ``{"training.seed": [1, 2], "adapter.rank": [8, 16]}``.
    price
        The most that each job is worth, in dollars; with ``all_or_none`` all of them together.
    terms
        As of ``place_bid``; with ``all_or_none`` all jobs win, or none does.

    Raises
    ------
    BidRefusedError
        No job won.
    """
    all_or_none = terms.pop("all_or_none", False)
    body = yield from _build_work(data, zone, deadline, validation, terms)
    listed = {setting: list(values) for setting, values in sweep.items()}
    body |= {"price": str(price), "sweep": listed, "all_or_none": all_or_none}
    if name is not None:
        body["name"] = name
    key = idempotency_key or draw_key()
    answer = yield from send(Call("POST", "/api/bundles", json=body, idempotency_key=key))
    sweep_id = str(answer.body["id"])
    while answer.body["status"] == "pending":
        yield Pause(LOOK_EVERY_S)
        answer = yield from send(Call("GET", f"/api/bundles/{check_id(sweep_id)}"))
    return Sweep.read(answer.body)


def get_sweep(sweep_id: str) -> Operation[Sweep]:
    answer = yield from send(Call("GET", f"/api/bundles/{check_id(sweep_id)}"))
    return Sweep.read(answer.body)
