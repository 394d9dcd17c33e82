"""What a tick finds to do in a zone.

Asked in one message and in plain SQL: a tick comes every few seconds, and composing a
query costs the market's own processor more than a quiet zone's whole tick does now. What
begins after it was asked is found by the next tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from marketplace.common.db.pipeline import fetch
from marketplace.express.queries import build_shortage_check
from marketplace.express.shortage import RECENT
from marketplace.fleet.queries import build_serverful_count
from marketplace.jobs.queries import build_ended_check
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.queries import build_tick_check

#: If the job has not gone on elsewhere by then, its stay has no pause.
NOTED_WITHIN = timedelta(minutes=15)
#: An offer is not taken again for this long after its machine did not come up.
OFFER_PAUSE = timedelta(minutes=5)
#: A job that ended later may be committed before one that ended earlier.
SETTLED_AFTER = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class TickWork:
    #: Whether the zone has live machines, and open stays and bookings.
    machines: bool
    stays: bool
    bookings: bool
    #: Ended stays whose needless cells are not given back, or whose pause is not known yet.
    releases: bool
    pauses: bool
    #: Offers on sale as nodes, or whose machines boot.
    listed: bool
    #: Offers whose machines lately did not come up.
    failures: bool
    #: Jobs that ended and are not in the hazards' tables.
    endings: bool
    #: Whether the zone's express lane lately had no seat for somebody.
    shortage: bool
    #: Nodes on sale.
    nodes: int


def find_tick_work(*, tiers: ZoneTiers, now: datetime) -> TickWork:
    own, [(endings,)], [(shortage,)], [(nodes,)] = fetch(
        build_tick_check(
            zone_id=tiers.zone_id, noted_since=now - NOTED_WITHIN, failed_since=now - OFFER_PAUSE
        ),
        build_ended_check(zone_id=tiers.zone_id, until=now - SETTLED_AFTER, after=tiers.learned_at),
        build_shortage_check(zone_id=tiers.zone_id, since=now - RECENT),
        build_serverful_count(zone_id=tiers.zone_id),
    )
    return TickWork(*own[0], endings=endings, shortage=shortage, nodes=nodes)
