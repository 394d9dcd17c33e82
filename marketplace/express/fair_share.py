"""How many of a lane's seats one organisation may have at once."""

from __future__ import annotations

import math

from marketplace.express.seats import HeldSeat

#: Of the seats, the share that one organisation's jobs may sit on while there are several.
FAIR_SHARE = 0.5


def find_share(seats: int) -> int:
    """Find the most seats of a lane that one organisation's jobs may sit on or wait for."""
    return seats if seats <= 1 else math.ceil(seats * FAIR_SHARE)


def limit_seats(seats: list[HeldSeat], *, own_seats: int) -> list[HeldSeat]:
    """Give the lane's seats, or none to an organisation that has its share of them already."""
    return [] if len(seats) > 1 and own_seats >= find_share(len(seats)) else seats
