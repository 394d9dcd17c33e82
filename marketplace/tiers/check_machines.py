"""Machines for results that only their own provider's nodes could measure, at the house's cost.

The machine's node comes on sale as any other's does, and is asked for the check. It is given back
by the rule for idle machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from marketplace.fleet.models import Zone
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.tier_state import TierState, filter_offers


def can_rent_checker(zone: Zone, provider_id: str) -> bool:
    """Whether the house may rent machines in a zone that judge the nodes of a provider."""
    tiers = ZoneTiers.objects.filter(zone=zone, is_on=True, serverful_cap__gt=0)
    return tiers.exclude(provider=provider_id).exclude(provider__verified_at=None).exists()


def rent_for_checks(*, rented: TierState, offers: Sequence[MachineOffer], now: datetime) -> bool:
    """Request the cheapest machine for results that wait, unless one is there or coming.

    Call where a result waits that no node could measure.
    """
    is_there = any(True for _ in rented.online(serverless=False))
    affordable = filter_offers(offers, serverless=False)
    if is_there or rented.coming(serverless=False) or not affordable:
        return False
    if rented.room(serverless=False) < 1:
        return False
    rented.request(affordable[0], reason="Results wait to be measured.", now=now)
    return True
