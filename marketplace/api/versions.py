"""Dated versions of the API, and addresses that will go.

A request may name the version it was written for, ``Finetender-Version: 2026-11-22``; without it,
it gets the newest. A change of shape comes as a new version. Answers of the version before carry
``Deprecation`` (RFC 9745) and, once its end is fixed, ``Sunset`` (RFC 8594).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from urllib.parse import quote

from django.utils.http import http_date

from marketplace.common.errors import UserError

HEADER = "Finetender-Version"


@dataclass(frozen=True, slots=True)
class Deprecation:
    """Of a version, or of one operation of it."""

    since: date
    #: When it will be gone; ``None`` where that is not fixed.
    sunset: date | None
    #: What takes its place, as an address such as ``/api/bids/{bid_id}``; empty for a version.
    successor: str = ""

    def build_headers(self, names: Mapping[str, str] | None = None) -> dict[str, str]:
        """What an answer says; ``names`` are those of the request's own address."""
        found = {"Deprecation": f"@{_seconds(self.since)}"}
        if self.sunset is not None:
            found["Sunset"] = http_date(_seconds(self.sunset))
        if self.successor:
            successor = self.successor.format_map(
                {name: quote(text, safe="") for name, text in (names or {}).items()}
            )
            found["Link"] = f'<{successor}>; rel="successor-version"'
        return found


#: Every version that is served, newest last, with what becomes of it.
VERSIONS: Mapping[date, Deprecation | None] = {date(2026, 11, 22): None}


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


def build_version_headers(version: date) -> dict[str, str]:
    """What an answer says of the version it has."""
    deprecation = VERSIONS[version]
    return {
        HEADER: version.isoformat(),
        **({} if deprecation is None else deprecation.build_headers()),
    }


def _seconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
