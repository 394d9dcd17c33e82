"""Machines for an express lane in a sold-out zone: rented within the lane's budget.

The machine's node comes on sale as any other's does, and the lane bids for its cells. It is given
back by the rule for idle machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from marketplace.express.shortage import find_shortage
from marketplace.tiers.machines import compute_ask_micros
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.tier_state import TierState, filter_offers


def rent_for_lane(*, rented: TierState, offers: Sequence[MachineOffer], now: datetime) -> int:
    """Request what the zone's lane lacks, at most; how many machines.

    A machine that costs more than the lane bids for a seat would stand idle, so it is not taken.
    """
    zone = rented.tiers.zone
    if rented.coming(serverless=False) or rented.room(serverless=False) < 1:
        # What was asked for before comes on sale first.
        return 0
    lack = find_shortage(zone, now=now)
    if lack is None:
        return 0
    affordable = [
        offer
        for offer in filter_offers(offers, serverless=False)
        if compute_ask_micros(zone, offer.price_micros_per_h) <= lack.seat_limit_micros
        and offer.price_micros_per_h <= lack.budget_left_micros_per_h
    ]
    if not affordable:
        return 0
    offer = affordable[0]
    wanted = min(
        -(-lack.seats // zone.jobs_per_node),
        rented.room(serverless=False),
        lack.budget_left_micros_per_h // max(1, offer.price_micros_per_h),
    )
    for _ in range(wanted):
        rented.request(offer, reason="The express lane lacks seats.", now=now)
    return wanted
