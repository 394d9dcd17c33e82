"""What a vendor's own system is asked for a quote, and what it may answer: free functions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from marketplace.common.errors import UserError
from marketplace.common.money import to_micros
from marketplace.vendors.quoting import DataSize, QuoteFunction, compute_price
from workers.protocol.job_terms import PreparationWish

QUOTE_REQUESTED = "quote.requested"
#: A quote may be valid for this time at most.
VALID_S_MAX = 3600
_WORK_S_MAX = 10**9


class WrongAnswer(Exception):
    """An answer is not of the agreed form."""


class ContradictoryAnswer(Exception):
    """An answer goes against what the vendor has said before."""


@dataclass(frozen=True, slots=True)
class EndpointQuote:
    """A vendor's answer."""

    price_micros: int
    #: Seconds of work within its working hours.
    work_s: int
    #: Until then the vendor asks no more, and takes no longer, for the same work.
    valid_until: datetime

    def to_json(self) -> list[Any]:
        return [self.price_micros, self.work_s, self.valid_until.isoformat()]

    @classmethod
    def from_json(cls, value: list[Any]) -> EndpointQuote:
        price_micros, work_s, until = value
        return cls(price_micros, work_s, datetime.fromisoformat(until))


def build_question(
    *, request_id: str, zone_name: str, size: DataSize, wish: PreparationWish, now: datetime
) -> bytes:
    """The message that asks for a quote: sizes and wishes, and nothing of the data."""
    message = {
        "type": QUOTE_REQUESTED,
        "timestamp": now.isoformat(),
        "data": {
            "request_id": request_id,
            "zone": zone_name,
            "rows": size.rows,
            "tokens": size.tokens,
            "skills": list(wish.skills),
            "languages": list(wish.languages),
            "mask_personal_data": wish.mask_personal_data,
            "drop_duplicates": wish.drop_duplicates,
        },
    }
    return json.dumps(message, sort_keys=True).encode()


def read_answer(body: bytes, *, request_id: str, now: datetime) -> EndpointQuote:
    """Read ``{"request_id", "price", "work_s", "valid_s"}``; the price is a text in dollars.

    Raises
    ------
    WrongAnswer
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WrongAnswer("it is not JSON") from error
    if not isinstance(value, dict):
        raise WrongAnswer("it is no object")
    answer = cast(dict[str, Any], value)
    if answer.get("request_id") != request_id:
        raise WrongAnswer("it answers another request")
    price = answer.get("price")
    if not isinstance(price, str):
        raise WrongAnswer("price is not a text")
    try:
        price_micros = to_micros(price)
    except UserError as error:
        raise WrongAnswer("price is not an amount in dollars") from error
    work_s = _read_seconds(answer, "work_s", most=_WORK_S_MAX)
    valid_s = _read_seconds(answer, "valid_s", most=VALID_S_MAX)
    return EndpointQuote(price_micros, work_s, now + timedelta(seconds=valid_s))


def _read_seconds(answer: dict[str, Any], name: str, *, most: int) -> int:
    value = answer.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise WrongAnswer(f"{name} is not a whole number of 0 to {most:,}")
    return value


def check_consistent(
    quote: EndpointQuote,
    *,
    listed: QuoteFunction,
    size: DataSize,
    earlier: EndpointQuote | None,
    now: datetime,
) -> None:
    """Compare a quote with the vendor's listed terms and with its last quote for the same work.

    Raises
    ------
    ContradictoryAnswer
        It asks more than the function that the vendor listed, or more or longer than a quote that
        it had said to hold still.
    """
    if quote.price_micros > compute_price(listed, size):
        raise ContradictoryAnswer("it asks more than the vendor's listed function")
    if earlier is None or earlier.valid_until <= now:
        return
    if quote.price_micros > earlier.price_micros or quote.work_s > earlier.work_s:
        raise ContradictoryAnswer("it goes back on a quote that holds still")
