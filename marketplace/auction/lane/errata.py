"""What the market says of a zone's log in the log itself, and so under its signed heads."""

from __future__ import annotations

from datetime import datetime

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.enter import enter_lane, open_lane
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from scheduler.auction.log import events
from scheduler.auction.log.limits import check_event


def note_erratum(*, zone: Zone, position: int, problem: str, now: datetime) -> int:
    """Name an entry as wrong, with what a replay finds there; the position of the entry that does.

    Raises
    ------
    UserError
        ``invalid_erratum``: the text is longer than a log takes or has control characters, or what
        was found has no amount that a log can say.
        ``no_such_fault``: a replay finds nothing wrong with that entry, or a log that contradicts
        itself, which no entry can mend.
    """
    found = verify_zone(zone)
    if found.unnamed is None or found.unnamed.position != position:
        raise UserError(
            "no_such_fault",
            f"A replay finds no fault in entry {position} of zone {zone.name}. It found: "
            f"{'; '.join(found.problems) or 'nothing'}.",
        )
    off_by = found.unnamed.off_by or {}
    erratum = events.ErratumNoted(position, problem, found.unnamed.problem, off_by)
    try:
        check_event(erratum)
    except ValueError as error:
        raise UserError("invalid_erratum", f"The log refuses it: {error}.") from None
    with enter_lane(zone=zone, now=now) as lane:
        return lane.apply(erratum).position


def note_restore(*, zone: Zone, backed_up_at: datetime, now: datetime) -> None:
    """Say that a zone goes on from a backup, so that heads of what was lost are explained."""
    with open_lane(zone=zone, now=now) as lane:
        lane.apply(events.LogRestored(backed_up_at.isoformat(), now.isoformat()))
