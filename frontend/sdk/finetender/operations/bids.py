"""Prices of jobs, and bids for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

from finetender.calls import Call, Operation, Pause, draw_key, send
from finetender.deadlines import parse_deadline
from finetender.errors import build_error
from finetender.operations.data import (
    LOOK_EVERY_S,
    Data,
    Settings,
    check_id,
    choose_zone,
    find_dataset_id,
    read_zones,
)
from finetender.values import Bid, Quote

Deadline = str | datetime | timedelta
#: For a warm start, while a node compares some rows. The market gives that up after ten seconds.
ASK_AGAIN = 30


def get_quote(
    data: Data,
    *,
    deadline: Deadline,
    zone: str | None = None,
    adapter: Settings | None = None,
    training: Settings | None = None,
    model: str = "",
    preparation: Settings | None = None,
    validation: Data | None = None,
    verified_only: bool | None = None,
    warm_start: bool = False,
) -> Operation[Quote]:
    """What a job would cost now, and by deadline; it reserves nothing.

    Parameters
    ----------
    validation
        Whose rows are held out; without it, a share of the data's own.
    verified_only
        Nodes of verified providers only; without it, as your organisation has it.
    warm_start
        Look for an adapter to begin with, which takes some seconds. Bid with the quote's ``model``
        to use what was found.
    """
    body = yield from _build_work(data, zone, deadline, adapter, training, model, validation)
    body |= {"preparation": preparation, "verified_only": verified_only, "warm_start": warm_start}
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
    adapter: Settings | None = None,
    training: Settings | None = None,
    model: str = "",
    preparation: Settings | None = None,
    validation: Data | None = None,
    verified_only: bool | None = None,
    idempotency_key: str | None = None,
) -> Operation[Bid]:
    """Bid for a job, and wait until the bid is decided.

    Parameters
    ----------
    price
        The most the job is worth, in dollars. What is paid does not depend on it.
    validation
        Whose rows are held out; without it, a share of the data's own.
    verified_only
        Nodes of verified providers only; without it, as your organisation has it.

    Raises
    ------
    BidRefusedError
        With the price that would have won.
    """
    body = yield from _build_work(data, zone, deadline, adapter, training, model, validation)
    body |= {"price": str(price), "preparation": preparation, "verified_only": verified_only}
    if name is not None:
        body["name"] = name
    key = idempotency_key or draw_key()
    answer = yield from send(Call("POST", "/api/bids", json=body, idempotency_key=key))
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
    adapter: Settings | None,
    training: Settings | None,
    model: str,
    validation: Data | None,
) -> Operation[dict[str, Any]]:
    """What a quote and a bid have in common; data that is a file is stored first."""
    answer = yield from send(Call("GET", "/api/zones"))
    zone = choose_zone(read_zones(answer), zone_name)
    # Deadlines count on the market's clock, which may differ from this machine's.
    told = answer.headers.get("date")
    now = parsedate_to_datetime(told) if told else datetime.now(UTC)
    at = parse_deadline(deadline, now=now, latest=zone.latest_deadline)
    return {
        "zone": zone.name,
        "dataset_id": (yield from find_dataset_id(data, zone.name)),
        "adapter": dict(adapter or {}),
        "training": dict(training or {}),
        "deadline": at.isoformat(),
        **({"model": model} if model else {}),
        "validation_dataset_id": None
        if validation is None
        else (yield from find_dataset_id(validation, zone.name)),
    }
