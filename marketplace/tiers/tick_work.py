"""What a tick finds to do in a zone.

Asked in one statement and in plain SQL: a tick comes every few seconds, and composing a
query costs the market's own processor more than a quiet zone's whole tick does now. What
begins after it was asked is found by the next tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from marketplace.fleet.models import NodeStatus, Tier
from marketplace.tiers.models import LIVE, ZoneTiers

#: A stay whose job has not gone on elsewhere by then has no pause.
NOTED_WITHIN = timedelta(minutes=15)
#: An offer whose machine did not come up is not taken again before this.
OFFER_PAUSE = timedelta(minutes=5)
#: A job that ended later may be committed before one that ended earlier.
SETTLED_AFTER = timedelta(seconds=30)

_ASKED = """
SELECT
    EXISTS (
        SELECT FROM tiers_machine WHERE zone_id = %(zone)s AND status = ANY(%(live)s)
    ),
    EXISTS (
        SELECT FROM tiers_stay s JOIN tiers_machine m ON m.id = s.machine_id
        WHERE m.zone_id = %(zone)s AND s.ended_at IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_booking b JOIN tiers_machine m ON m.id = b.machine_id
        WHERE m.zone_id = %(zone)s AND b.closed_at IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_stay s JOIN tiers_machine m ON m.id = s.machine_id
        WHERE m.zone_id = %(zone)s AND s.ended_at IS NOT NULL AND s.released_at IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_stay s JOIN tiers_machine m ON m.id = s.machine_id
        WHERE m.zone_id = %(zone)s AND s.ended_at > %(noted_since)s AND s.pause_s IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_machine
        WHERE zone_id = %(zone)s AND ready_at IS NULL AND failed_at > %(failed_since)s
    ),
    EXISTS (
        SELECT FROM jobs_job
        WHERE zone_id = %(zone)s AND finished_at <= %(settled)s
        AND (%(learned)s::timestamptz IS NULL OR finished_at > %(learned)s)
    ),
    (
        SELECT count(*) FROM fleet_node
        WHERE zone_id = %(zone)s AND status = %(online)s AND tier <> %(serverless)s
    )
"""


@dataclass(frozen=True, slots=True)
class TickWork:
    #: Whether the zone has live machines, and open stays and bookings.
    machines: bool
    stays: bool
    bookings: bool
    #: Ended stays whose needless cells are not given back, or whose pause is not known yet.
    releases: bool
    pauses: bool
    #: Offers whose machines lately did not come up.
    failures: bool
    #: Jobs that ended and are not in the hazards' tables.
    endings: bool
    #: Nodes on sale.
    nodes: int


def find_tick_work(*, tiers: ZoneTiers, now: datetime) -> TickWork:
    with connection.cursor() as cursor:
        cursor.execute(
            _ASKED,
            {
                "zone": tiers.zone_id,
                "live": [status.value for status in LIVE],
                "noted_since": now - NOTED_WITHIN,
                "failed_since": now - OFFER_PAUSE,
                "settled": now - SETTLED_AFTER,
                "learned": tiers.learned_at,
                "online": NodeStatus.ONLINE.value,
                "serverless": Tier.SERVERLESS.value,
            },
        )
        row = cursor.fetchone()
    assert row is not None
    return TickWork(*row)
