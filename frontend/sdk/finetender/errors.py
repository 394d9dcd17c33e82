"""What can go wrong, as exceptions; each has the exit code that the command line ends with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar


class FinetenderError(Exception):
    """Anything that this package raises on purpose; the message says what to do next."""

    exit_code: ClassVar[int] = 1


class UsageError(FinetenderError):
    """Something was left out, or cannot be read on this machine."""

    exit_code = 2


class MarketError(FinetenderError):
    """The market refused a request."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(str(body.get("detail") or f"The market answered {status}."))
        self.status = status
        #: Stable name of what is wrong; programs compare it.
        self.code = str(body.get("code") or f"http_{status}")
        self.param = body.get("param")
        self.request_id = body.get("request_id")
        self.body = body


class InvalidRequestError(MarketError):
    """A value cannot be taken; ``param`` names it."""

    exit_code = 5


class NotAuthorizedError(MarketError):
    """The key is missing, unknown, or lacks a scope."""

    exit_code = 3


class NotFoundError(MarketError):
    exit_code = 4


class ConflictError(MarketError):
    """It cannot be done now."""

    exit_code = 5


class BidRefusedError(MarketError):
    """The bid lost; nothing was charged."""

    exit_code = 7

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(status, body)
        price = body.get("posted_price")
        #: What would have won, in dollars; ``None`` where no price would have.
        self.posted_price = None if price is None else Decimal(price)
        self.reason = body.get("reason")
        #: The soonest deadline that would have won, and its price; ``None`` where none would have.
        earliest, its_price = body.get("earliest_deadline"), body.get("earliest_deadline_price")
        self.earliest_deadline = None if earliest is None else datetime.fromisoformat(earliest)
        self.earliest_deadline_price = None if its_price is None else Decimal(its_price)


class NoFundsError(MarketError):
    """The wallet has less than the price; no bid was placed, and a higher one would not win."""

    exit_code = 9

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(status, body)
        short = body.get("short_by")
        #: What the wallet lacks, in dollars.
        self.short_by = None if short is None else Decimal(short)


class BusyError(MarketError):
    """Too many requests, or a fault of the market's; it was tried several times."""

    exit_code = 10


class UnreachableError(FinetenderError):
    """No answer came, though it was tried several times."""

    exit_code = 6


class JobFailedError(FinetenderError):
    """A job ended without an adapter."""

    exit_code = 8


class ExportFailedError(FinetenderError):
    """No file was made of an adapter, or it could not be pushed; nothing was paid for it."""

    exit_code = 8


_BY_STATUS: Mapping[int, type[MarketError]] = {
    401: NotAuthorizedError,
    402: BidRefusedError,
    403: NotAuthorizedError,
    404: NotFoundError,
    408: BusyError,
    409: ConflictError,
    429: BusyError,
}


def build_error(status: int, body: Mapping[str, Any]) -> MarketError:
    """The exception that an error response stands for."""
    if body.get("code") == "insufficient_funds":
        return NoFundsError(status, body)
    default = BusyError if status >= 500 else InvalidRequestError
    return _BY_STATUS.get(status, default)(status, body)
