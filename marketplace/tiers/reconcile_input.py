"""What a tick finds to do in a zone.

A tick comes every few seconds. What begins after it was asked is found by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from marketplace.checks.scores import lacks_checker
from marketplace.express.queries import was_short
from marketplace.express.shortage import RECENT
from marketplace.fleet.models import Node, NodeStatus, Tier
from marketplace.jobs.models import Job
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.queries import check_zone

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
    #: Whether a result waits to be measured that no node there could measure.
    checks: bool
    #: Nodes on sale.
    nodes: int


def find_tick_work(*, tiers: ZoneTiers, now: datetime) -> TickWork:
    zone_id = tiers.zone_id
    own = check_zone(
        zone_id=zone_id, noted_since=now - NOTED_WITHIN, failed_since=now - OFFER_PAUSE
    )
    ended = Job.objects.filter(zone=zone_id, finished_at__lte=now - SETTLED_AFTER)
    if tiers.learned_at is not None:
        ended = ended.filter(finished_at__gt=tiers.learned_at)
    nodes = Node.objects.filter(zone=zone_id, status=NodeStatus.ONLINE)
    return TickWork(
        *own,
        endings=ended.exists(),
        shortage=was_short(zone_id=zone_id, since=now - RECENT),
        checks=tiers.is_on and lacks_checker(zone_id=zone_id, now=now),
        nodes=nodes.exclude(tier=Tier.SERVERLESS).count(),
    )
