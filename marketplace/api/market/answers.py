"""What a bid is answered with."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from marketplace.api.idempotency import REPLAYED
from marketplace.api.market.serialize import serialize_bids
from marketplace.api.problems import problem
from marketplace.auction.bidding.place import PlacedBid
from marketplace.auction.bidding.refusals import REFUSAL_CODES, describe_bid_refusal
from marketplace.auction.models import Bid, BidStatus
from scheduler.types import Refusal


def placed_response(placed: PlacedBid) -> Response:
    """The answer to whoever placed a bid, the same for whoever sends the request again."""
    return placed_responses([placed])[0]


def placed_responses(placed: list[PlacedBid]) -> list[Response]:
    """The same for several bids."""
    for item in placed:
        # Told as it was decided; what became of its money later is told at its address.
        item.bid.refund_micros = item.bid.credit_micros = 0
    shapes = serialize_bids([item.bid for item in placed])
    responses = [_response(item.bid, shape) for item, shape in zip(placed, shapes, strict=True)]
    for item, response in zip(placed, responses, strict=True):
        if item.earlier:
            for name, value in REPLAYED.items():
                response[name] = value
    return responses


def _response(bid: Bid, shape: dict[str, Any]) -> Response:
    """201 admitted, 402 refused, 202 not decided yet; the bid is in the body each time."""
    address = f"/api/bids/{bid.pk}"
    if bid.status == BidStatus.REFUSED:
        refusal = Refusal(bid.refusal)
        decision = shape["decision"]
        return problem(
            code=REFUSAL_CODES[refusal],
            detail=describe_bid_refusal(bid),
            status=402,
            extra={
                "reason": refusal.value,
                "posted_price": decision["posted_price"],
                "earliest_deadline": decision["earliest_deadline"],
                "earliest_deadline_price": decision["earliest_deadline_price"],
                "bid": shape,
            },
            headers={"Location": address, "x-should-retry": "false"},
        )
    if bid.status == BidStatus.PENDING:
        return Response(shape, status=202, headers={"Location": address, "Retry-After": "1"})
    status = 201 if bid.status == BidStatus.ADMITTED else 200
    return Response(shape, status=status, headers={"Location": address})
