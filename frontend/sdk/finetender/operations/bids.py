"""Prices of jobs, and bids for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Unpack, cast

from finetender.calls import Call, Operation, Pause, draw_key, send
from finetender.deadlines import write_deadline
from finetender.errors import (
    BusyError,
    MarketError,
    UsageError,
    build_error,
)
from finetender.operations.data import (
    LOOK_EVERY_S,
    Data,
    check_id,
    choose_zone,
    find_dataset_id,
    list_zones,
)
from finetender.terms import JobTerms
from finetender.values import Bid, Quote, Sweep, Zone

Deadline = str | datetime | timedelta
#: For a warm start, while a node compares some rows. The market gives that up after ten seconds.
ASK_AGAIN = 30
#: Times that a price is asked for.
PRICE_TRIES = 4
#: Of an idempotency key, so that a number fits behind it.
KEY_LENGTH = 240
#: Prices that one call answers at most.
ANSWERS = 2


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
    body, _ = yield from _build_work(data, zone, deadline, validation, terms)
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
    tells_price: bool = False,
    **terms: Unpack[JobTerms],
) -> Operation[Bid]:
    """Bid for a job, and wait until the bid is decided.

    The market is not told ``price``: it says what the job costs, and this takes that if it is less.

    Parameters
    ----------
    price
        The most the job is worth, in dollars. What is paid does not depend on it.
    tells_price
        Send the price along, so that the market decides; who runs it sees it then. One request
        less, and a refusal says the soonest deadline that would have won.
    validation
        Whose rows are held out; without it, a share of the data's own.
    terms
        See ``JobTerms``; what is left out, the market chooses.

    Raises
    ------
    BidRefusedError
        With the price that would have won.
    """
    limit = read_dollars(price)
    body, where = yield from _build_work(data, zone, deadline, validation, terms)
    if name is not None:
        body["name"] = name
    if tells_price:
        body["price"] = str(price)
        return (yield from _send_bid("/api/bids", body, idempotency_key))
    if where.beat is None:
        raise UsageError("This market tells no price first: bid with tells_price.")
    key = idempotency_key or draw_key()
    return (yield from _take_or_leave(body, where, limit, key))


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


class _LapsedError(Exception):
    """A price lapsed; nothing was bought."""


def _take_or_leave(body: dict[str, Any], zone: Zone, limit: Decimal, key: str) -> Operation[Bid]:
    """Ask for the price of a job, with retries, and take it if it is below the limit.

    A price that was taken and rose meanwhile, or lapsed though it was answered, is asked for once
    more, and no more than once: else whoever tells prices could search for the limit by telling one
    after another. Under one key the same job is bought once, also if this is called again after a
    crash.
    """
    failure: MarketError = BusyError(503, {"detail": "No price was told in time. Try again."})
    answered = 0
    for attempt in range(PRICE_TRIES):
        if attempt:
            yield Pause(LOOK_EVERY_S)
            zone = choose_zone((yield from list_zones()), zone.name)
        own_key = f"{key[:KEY_LENGTH]}.{attempt}" if attempt else key
        call = Call("POST", "/api/bids", json={**body, "beat": zone.beat}, idempotency_key=own_key)
        try:
            bid = yield from _ask_price(call)
        except _LapsedError:
            continue
        if bid.status == "priced":
            try:
                bid = yield from _answer(bid, limit)
            except _LapsedError:
                answered += 1
                if answered >= ANSWERS:
                    raise failure from None
                continue
        if bid.status == "admitted":
            return bid
        failure = _build_refusal(bid)
        answered += 1
        if not bid.raw["offer"]["takes"] or answered >= ANSWERS:
            raise failure
    raise failure


def _ask_price(call: Call) -> Operation[Bid]:
    """Place a bid that asks for its price, and wait for the price or an earlier decision."""
    try:
        found = Bid.read((yield from send(call)).body)
    except MarketError as error:
        # Sent again, it may have been answered and refused before, or have lapsed.
        found = _read_bid(error)
    return (yield from _await_told(found))


def _read_bid(error: MarketError) -> Bid:
    """Read the bid that a refusal tells of; another is raised."""
    told = error.body.get("bid")
    if error.code == "price_lapsed":
        raise _LapsedError from error
    if not isinstance(told, Mapping):
        raise error
    bid = Bid.read(cast(Mapping[str, Any], told))
    if bid.status != "refused":
        raise error
    return bid


def _await_told(bid: Bid) -> Operation[Bid]:
    bid = yield from _await_bid(bid)
    if bid.status != "cancelled":
        return bid
    offer: Mapping[str, Any] = bid.raw.get("offer") or {}
    lapse = offer.get("lapse")
    if lapse in ("beat", "time"):
        raise _LapsedError
    detail = f"There is no plan: {lapse}." if lapse else "The bid was taken back."
    code = f"no_{lapse}" if lapse else "bid_cancelled"
    raise build_error(402, {"code": code, "reason": lapse, "detail": detail, "bid": bid.raw})


def _answer(bid: Bid, limit: Decimal) -> Operation[Bid]:
    assert bid.offered_price is not None
    answer = {"take": limit > bid.offered_price, "price": str(bid.offered_price)}
    path = f"/api/bids/{check_id(bid.id)}/answer"
    try:
        found = Bid.read((yield from send(Call("POST", path, json=answer))).body)
    except MarketError as error:
        found = _read_bid(error)
    found = yield from _await_told(found)
    if found.payment is not None and found.payment > bid.offered_price:
        raise MarketError(
            500, {"detail": f"${found.payment} was charged where ${bid.offered_price} was taken."}
        )
    return found


def _await_bid(bid: Bid) -> Operation[Bid]:
    while bid.status == "pending":
        yield Pause(LOOK_EVERY_S)
        bid = yield from get_bid(bid.id)
    return bid


def _build_refusal(bid: Bid) -> MarketError:
    decision = bid.raw["decision"]
    return build_error(402, {**decision, "detail": decision["reason_text"], "bid": bid.raw})


def _send_bid(path: str, body: dict[str, Any], idempotency_key: str | None) -> Operation[Bid]:
    """Place a bid under a key, and wait until it is decided."""
    key = idempotency_key or draw_key()
    answer = yield from send(Call("POST", path, json=body, idempotency_key=key))
    bid = yield from _await_bid(Bid.read(answer.body))
    if bid.status == "refused":
        raise _build_refusal(bid)
    return bid


def get_bid(bid_id: str) -> Operation[Bid]:
    answer = yield from send(Call("GET", f"/api/bids/{check_id(bid_id)}"))
    return Bid.read(answer.body)


def cancel_bid(bid_id: str) -> Operation[Bid]:
    """Take a bid back that is not decided yet."""
    answer = yield from send(Call("POST", f"/api/bids/{check_id(bid_id)}/cancel", json={}))
    return Bid.read(answer.body)


def read_dollars(price: str | float | Decimal) -> Decimal:
    """A price as a number.

    Raises
    ------
    UsageError
        It is not a number above zero.
    """
    try:
        found = Decimal(str(price))
    except ArithmeticError:
        found = Decimal("nan")
    if not found.is_finite() or found <= 0:
        raise UsageError(f"{price!r} is no price; give dollars such as 4.50.")
    return found


def _build_work(
    data: Data,
    zone_name: str | None,
    deadline: Deadline,
    validation: Data | None,
    terms: JobTerms,
) -> Operation[tuple[dict[str, Any], Zone]]:
    """What a quote and a bid have in common; data that is a file is stored first."""
    zone = choose_zone((yield from list_zones()), zone_name)
    body = {
        **{name: value for name, value in terms.items() if value not in (None, "")},
        "zone": zone.name,
        "dataset_id": (yield from find_dataset_id(data, zone.name)),
        "deadline": write_deadline(deadline),
        "validation_dataset_id": None
        if validation is None
        else (yield from find_dataset_id(validation, zone.name)),
    }
    return body, zone


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
    body, _ = yield from _build_work(data, zone, deadline, validation, terms)
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
