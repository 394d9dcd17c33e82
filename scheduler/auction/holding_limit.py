"""How much of a new zone one organisation may hold.

Before prices have been solved from a market's own bids a zone sells at what providers ask.
The first to come could take all of it then at hardly more than that, and so keep out bids
worth many times as much. So, until other organisations have won some bids, one
organisation's jobs and waiting bids may come to a part of the zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

#: Of the samples on sale within the horizon; one node at least.
MOST_SHARE = 0.25
#: Bids of others that must have won, and days after which it is lifted in any case.
OTHERS_WON, DAYS = 200, 7


def find_most_held(capacities: Sequence[float], *, slots: int) -> float:
    """Give the samples that one organisation may hold in a new zone.

    Parameters
    ----------
    capacities : sequence of float
        Samples a slot of each node on sale.
    slots : int
        Of the horizon.

    Returns
    -------
    float
        Infinity where it would be the whole zone.
    """
    most = max(MOST_SHARE * sum(capacities), max(capacities, default=0.0))
    return inf if most >= sum(capacities) else most * slots
