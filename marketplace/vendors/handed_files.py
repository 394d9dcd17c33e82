"""Files on their way between the market and a vendor, until they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marketplace.vendors.models import RowOpinion


@dataclass(frozen=True, slots=True)
class Delivery:
    """Files of a vendor and its account of them."""

    training: Path
    #: None when no rows were held out.
    held_out: Path | None
    #: Every change, one JSON object a line; None where the vendor gives no account.
    changes: Path | None
    #: The id of each row, one JSON object a line.
    origins: Path
    report: dict[str, Any]
    #: ``workers.preparation.Comparison`` as JSON; None where the account says it all.
    comparison: dict[str, Any] | None = None
    #: Why the rule does not accept it; empty where it does.
    objection: str = ""
    #: Rows of it for second opinions, not saved.
    opinions: Sequence[RowOpinion] = ()


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row as its vendor got it."""

    #: Its place in the owner's file, from 1.
    number: int
    raw: str
    #: As the program repairs it, as JSON; empty where it cannot.
    proposal: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The data got ready for a vendor that delivers later: rows for people, or a copy to fetch."""

    rows: Path | None = None
    copy: Path | None = None
