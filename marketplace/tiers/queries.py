"""The tiers' own SQL: what is asked so often that composing a query costs more than its answer."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.db.rows import read_rows
from marketplace.tiers.models import LIVE


def check_zone(*, zone_id: str, noted_since: datetime, failed_since: datetime) -> tuple[bool, ...]:
    """Whether a zone has live machines, open stays, open bookings, stays whose cells are to be
    released, stays whose pause is to be noted, listed offers, and offers that failed.
    """
    live = [status.value for status in LIVE]
    values = (
        *(zone_id, live, zone_id, zone_id, zone_id),
        *(zone_id, noted_since, zone_id, zone_id, failed_since),
    )
    [found] = read_rows(_TICK_CHECK, values)
    return found


_TICK_CHECK = """
SELECT
    EXISTS (
        SELECT FROM tiers_machine WHERE zone_id = %s AND status = ANY(%s)
    ),
    EXISTS (
        SELECT FROM tiers_stay s JOIN tiers_machine m ON m.id = s.machine_id
        WHERE m.zone_id = %s AND s.ended_at IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_booking b JOIN tiers_machine m ON m.id = b.machine_id
        WHERE m.zone_id = %s AND b.closed_at IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_stay s JOIN tiers_machine m ON m.id = s.machine_id
        WHERE m.zone_id = %s AND s.ended_at IS NOT NULL AND s.released_at IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_stay s JOIN tiers_machine m ON m.id = s.machine_id
        WHERE m.zone_id = %s AND s.ended_at > %s AND s.pause_s IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_listedoffer WHERE tiers_id = %s AND closed_at IS NULL
    ),
    EXISTS (
        SELECT FROM tiers_machine
        WHERE zone_id = %s AND ready_at IS NULL AND failed_at > %s
    )
"""
