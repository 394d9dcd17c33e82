"""The two kinds of failure: the caller's, with words for them, and the market's own."""

import errno
from typing import Any

#: As PostgreSQL says that it cannot extend a file.
_PG_DISK_FULL = "53100"


class UserError(Exception):
    """The caller asked for something that cannot be done; ``message`` says what to do next.

    Parameters
    ----------
    code:
        What programs compare, such as ``insufficient_funds``; never changes once published.
    message:
        One or two sentences for a person.
    param:
        The input at fault, in the caller's spelling.
    status:
        The HTTP status that says the same.
    extra:
        More for programs, JSON-able, such as the price that would have won.
    """

    default_status = 400

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.status = self.default_status if status is None else status
        self.extra = extra or {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.message!r})"


class PaymentRequired(UserError):
    default_status = 402


class NotAllowed(UserError):
    default_status = 403


class NotFound(UserError):
    default_status = 404


class Conflict(UserError):
    default_status = 409


class MarketFault(Exception):
    """The market failed; the caller did nothing wrong and is owed what it cost them."""


class StorageUnavailable(OSError):
    """The market's file storage does not answer, or refuses the market."""


class DiskFull(UserError):
    """The market's disk has no room for a file, or for a body on its way."""

    default_status = 503

    def __init__(self) -> None:
        super().__init__("disk_full", "The market has no room for files now. Try again later.")


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a disk, or what one user may take of it, was full: here or at the database."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(getattr(error, "__cause__", None), "sqlstate", None) == _PG_DISK_FULL
