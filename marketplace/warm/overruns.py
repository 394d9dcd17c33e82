"""What the market pays for warm starts that fall behind, and where that ends.

An owner and a provider who work together could let starts fall behind to be paid for it. What the
market bears for each of them in a day is limited (``auction.exposure``), and an owner for whose
starts it paid that much is offered no further ones until the payments are old. What running starts
may still cost counts too, until they have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q, QuerySet, Sum

from marketplace.warm.models import Offer, Overrun

#: Payments count against further offers to an owner for this time.
COUNTED_FOR = timedelta(days=30)


def may_be_offered(*, owner_id: str, now: datetime) -> bool:
    """Whether an owner's starts cost the market less than it pays in a day at most."""
    return find_room(owner_id=owner_id, now=now) > 0


def find_room(*, owner_id: str, now: datetime) -> int:
    """What a day's limit leaves for further starts of an owner.

    What the market paid lately counts, and what it would pay if all of the owner's starts that have
    not ended fell behind.
    """
    paid = _sum(Overrun.objects.filter(owner=owner_id, made_at__gt=now - COUNTED_FOR))
    running = Offer.objects.filter(organisation=owner_id, bid_id__isnull=False, measured_at=None)
    risk = running.aggregate(total=Sum("risk_micros", default=0))["total"]
    return settings.HOUSE_BEARS_MICROS_PER_DAY - paid - risk


def sum_overruns(*, organisation_id: str, since: datetime) -> int:
    """What the market paid for starts of an organisation, and to it as a provider."""
    either = Q(owner=organisation_id) | Q(provider=organisation_id)
    return _sum(Overrun.objects.filter(either, made_at__gte=since))


def record_overruns(*, offer: Offer, by_provider: Mapping[str, int], now: datetime) -> None:
    """Note what the market paid each provider for a start that fell behind."""
    Overrun.objects.bulk_create(
        Overrun(
            offer=offer,
            owner_id=offer.organisation_id,
            provider_id=provider_id,
            amount_micros=amount,
            made_at=now,
        )
        for provider_id, amount in by_provider.items()
        if amount
    )


def _sum(overruns: QuerySet[Overrun]) -> int:
    return overruns.aggregate(total=Sum("amount_micros", default=0))["total"]
