"""Machines for results that only their own provider's nodes could measure, at the house's cost.

The machine's node comes on sale as any other's does, and is asked for the check. It is given back
by the rule for idle machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from marketplace.accounts.selectors import share_members
from marketplace.checks.models import SpotCheck
from marketplace.tiers.models import ZoneTiers
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.tier_state import TierState, filter_offers


def can_rent_checker(check: SpotCheck) -> bool:
    """Whether the house may rent a machine for a check: it must be no friend of those concerned."""
    tiers = ZoneTiers.objects.filter(zone=check.zone, is_on=True, serverful_cap__gt=0)
    found = tiers.exclude(provider__verified_at=None).select_related("provider__organisation")
    house = found.first()
    if house is None:
        return False
    parties = (check.job.organisation_id, check.checked_node.provider.organisation.pk)
    return not any(share_members(house.provider.organisation.pk, party) for party in parties)


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
