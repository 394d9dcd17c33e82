"""Dated versions of the API.

A request may name the version it was written for, ``Finetender-Version: 2026-11-22``; without it,
it gets the newest. A change of shape comes as a new version.
"""

from __future__ import annotations

from datetime import date

from marketplace.common.errors import UserError

HEADER = "Finetender-Version"

#: Every version that is served, newest last.
VERSIONS = (date(2026, 11, 22),)


def choose_version(asked: str | None) -> date:
    """The version a request gets: the newest that is not younger than what it names.

    Raises
    ------
    UserError
        ``unknown_version``.
    """
    newest = max(VERSIONS)
    if asked is None:
        return newest
    try:
        day = date.fromisoformat(asked)
    except ValueError:
        day = date.min
    served = [version for version in VERSIONS if version <= day]
    if not served:
        raise UserError(
            "unknown_version",
            f"{HEADER} must be a day such as {newest}; the oldest that is served is "
            f"{min(VERSIONS)}.",
            param=HEADER,
        )
    return max(served)
