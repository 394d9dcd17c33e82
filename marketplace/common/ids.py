"""Names of rows: a prefix that says what it is, then a ULID, which sorts by time."""

import re

from ulid import ULID

PREFIX = re.compile(r"[a-z][a-z0-9]{1,11}")


def new_id(prefix: str) -> str:
    """``new_id("bid")`` is ``bid_01j9x...``: at most 39 characters, lower case."""
    if not PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is not a prefix: 2 to 12 lower-case letters or digits")
    return f"{prefix}_{str(ULID()).lower()}"
