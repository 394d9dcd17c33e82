"""Names of rows: a prefix that says what it is, then a ULID, which sorts by time."""

import re
from datetime import datetime
from uuid import UUID

from ulid import ULID

ULID_LENGTH = 26
PREFIX = re.compile(r"[a-z][a-z0-9]{1,11}")
#: An id of any kind of row.
ID_PATTERN = rf"{PREFIX.pattern}[_-][0-9a-hjkmnp-tv-z]{{26}}"
_ID = re.compile(ID_PATTERN)


def new_id(prefix: str) -> str:
    """``new_id("bid")`` is ``bid_01j9x...``: at most 39 characters, lower case."""
    if not PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is not a prefix: 2 to 12 lower-case letters or digits")
    return f"{prefix}_{str(ULID()).lower()}"


def first_id(prefix: str, at: datetime) -> str:
    """An id that none made at a moment or later comes before."""
    return f"{prefix}_{str(ULID.from_datetime(at))[:10].lower()}{'0' * 16}"


def to_uuid(text: str) -> UUID:
    """The 128 bits of an id, without what it says of its kind.

    Raises
    ------
    ValueError
        It has no ULID.
    """
    return ULID.from_str(text[-ULID_LENGTH:].upper()).to_uuid()


def from_uuid(prefix: str, value: UUID) -> str:
    """The id of a kind of row that has these bits; they sort as ids do."""
    return f"{prefix}_{str(ULID.from_uuid(value)).lower()}"


def is_id(text: str) -> bool:
    """Whether a text has the form of an id, of any kind of row."""
    return _ID.fullmatch(text) is not None


def rename_id(text: str, prefix: str) -> str:
    """The id of something that goes by the same ULID: ``up_01j9x...`` to ``ds_01j9x...``."""
    return f"{prefix}_{text[-ULID_LENGTH:]}"
