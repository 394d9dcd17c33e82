"""Placing a bid for a request, and answering the request once the bid is decided.

Bids that come at the same moment are placed in one transaction and read back together; each is
refused or answered for itself. A request holds no thread while it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError
from rest_framework.response import Response

from marketplace.api.batching import Batcher
from marketplace.api.idempotency import REPLAYED
from marketplace.api.market.asked_bids import (
    AskedBid,
    FilesNotReadError,
    complete_bid,
    find_new_bids,
    read_files,
)
from marketplace.api.market.bid_serializers import serialize_bids
from marketplace.api.problems import build_problem
from marketplace.auction.bidding import wait
from marketplace.auction.bidding.answer import describe_lapse
from marketplace.auction.bidding.place import NewBid, PlacedBid, place_bids
from marketplace.auction.bidding.refusals import REFUSAL_CODES, describe_bid_refusal
from marketplace.auction.bidding.wait import listener
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.selectors import refresh_bids
from marketplace.common import clock
from marketplace.common.traces import record_request
from scheduler.types import Refusal

log = logging.getLogger(__name__)

#: Most bids of one transaction; more wait for the next.
BATCH_LIMIT = 64
#: Least time between the starts of two transactions. Most of what a batch costs, here and in the
#: lane, it costs once: at 20 ms, 100 bids/s came two at a time and kept two cores busy.
PACE_S = 0.04


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """A request that asks whether its bid is decided."""

    placed: PlacedBid
    #: Answer with the bid as it is, decided or not.
    is_last: bool


async def place_and_answer(asked: AskedBid) -> Response:
    """The answer to a request for a bid: its decision, or within ``WAIT_S`` where to look.

    Raises
    ------
    UserError
        The bid is refused as it stands; nothing was stored or held.
    """
    asked = await complete_bid(asked)
    try:
        placed = await asyncio.wrap_future(_placing.submit(asked))
    except FilesNotReadError as error:
        await sync_to_async(read_files)(error.new_bid)
        placed = await asyncio.wrap_future(_placing.submit(asked))
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wait.WAIT_S
    with listener.expecting(placed.bid.pk) as decided:
        # One that was placed before may be decided already.
        is_decided = placed.earlier
        while True:
            if not is_decided:
                await _wait(decided, min(wait.LOOK_EVERY_S, ends_at - loop.time()))
            is_last = loop.time() >= ends_at
            try:
                found = _reading.submit(_Look(placed, is_last))
                response = await asyncio.wrap_future(found)
            except (OperationalError, InterfaceError):
                if is_last:
                    raise
                log.warning("bid %s could not be read; trying again", placed.bid.pk, exc_info=True)
                await asyncio.sleep(min(wait.LOOK_EVERY_S, ends_at - loop.time()))
                continue
            if response is not None:
                if not placed.earlier:
                    record_request(bid_id=placed.bid.pk)
                return response
            is_decided = False


async def _wait(decided: Future[None], timeout_s: float) -> None:
    """Until the bid is decided, but no longer than ``timeout_s``."""
    await asyncio.wait([asyncio.wrap_future(decided)], timeout=max(0.0, timeout_s))


def _place(batch: list[AskedBid]) -> Sequence[PlacedBid | Exception]:
    listener.listen()
    found = find_new_bids(batch)
    new_bids = [item for item in found if isinstance(item, NewBid)]
    placed = iter(place_bids(asked=new_bids, now=clock.now()))
    return [next(placed) if isinstance(item, NewBid) else item for item in found]


def _read(batch: list[_Look]) -> list[Response | None]:
    """Responses to requests whose bid is decided or whose time to wait is over."""
    refresh_bids(look.placed.bid for look in batch)
    ready = [look for look in batch if look.is_last or look.placed.bid.status != BidStatus.PENDING]
    responses = iter(build_responses([look.placed for look in ready]))
    return [next(responses) if look in ready else None for look in batch]


_placing: Batcher[AskedBid, PlacedBid] = Batcher(
    _place, name="bids-in", limit=BATCH_LIMIT, pace_s=lambda _: PACE_S
)
_reading: Batcher[_Look, Response | None] = Batcher(
    _read, name="bids-out", limit=BATCH_LIMIT, pace_s=lambda _: 0.0
)


def build_responses(placed: Sequence[PlacedBid]) -> list[Response]:
    """The answers to those who placed bids, the same when a request is sent again."""
    for item in placed:
        # As it was decided; what became of its money later is shown at its address.
        item.bid.refund_micros = item.bid.credit_micros = 0
    values = serialize_bids([item.bid for item in placed])
    return [_build_response(item, value) for item, value in zip(placed, values, strict=True)]


def _build_response(placed: PlacedBid, value: dict[str, Any]) -> Response:
    """201 admitted, 402 refused, 202 not decided yet, 200 told its price; the body has the bid."""
    headers = {"Location": f"/api/bids/{placed.bid.pk}"}
    if placed.earlier:
        headers |= REPLAYED
    if placed.bid.status == BidStatus.REFUSED:
        return _build_refusal(placed.bid, value, headers)
    if placed.bid.status == BidStatus.PENDING:
        return Response(value, status=202, headers=headers | {"Retry-After": "1"})
    if placed.bid.asks_price and placed.bid.price_offer.lapse:
        return _build_lapse(placed.bid, value, headers)
    status = 201 if placed.bid.status == BidStatus.ADMITTED else 200
    return Response(value, status=status, headers=headers)


def _build_lapse(bid: Bid, value: dict[str, Any], headers: dict[str, str]) -> Response:
    """402 where there is no plan to price, 409 where the price may be asked for again."""
    lapse = bid.price_offer.lapse
    refusal = Refusal(lapse) if lapse in REFUSAL_CODES else None
    return build_problem(
        code="price_lapsed" if refusal is None else REFUSAL_CODES[refusal],
        detail=describe_lapse(bid),
        status=409 if refusal is None else 402,
        extra={"lapse": lapse, "reason": refusal and refusal.value, "bid": value},
        headers=headers | {"x-should-retry": "false"},
    )


def _build_refusal(bid: Bid, value: dict[str, Any], headers: dict[str, str]) -> Response:
    refusal = Refusal(bid.refusal)
    decision = value["decision"]
    return build_problem(
        code=REFUSAL_CODES[refusal],
        detail=describe_bid_refusal(bid),
        status=402,
        extra={
            "reason": refusal.value,
            "posted_price": decision["posted_price"],
            "earliest_deadline": decision["earliest_deadline"],
            "earliest_deadline_price": decision["earliest_deadline_price"],
            "bid": value,
        },
        headers=headers | {"x-should-retry": "false"},
    )
