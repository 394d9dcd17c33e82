"""What the market pays for warm starts that fall behind, and where that ends.

An owner and a provider who work together could let starts fall behind to be paid for it. So what
the market pays is limited for each owner and for each provider a day. At the limit, an owner is
offered no further starts until the payments are old. What running starts may still cost counts too,
until they have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db.models import QuerySet, Sum

from marketplace.warm.models import Offer, Overrun

#: For so long payments count against further offers to an owner.
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


def find_owner_limit(*, owner_id: str, now: datetime) -> int:
    """What the market may still pay today for an owner's starts; call with its wallet locked."""
    return _find_left(Overrun.objects.filter(owner=owner_id), now)


def find_provider_limit(*, provider_id: str, now: datetime) -> int:
    """What it may still pay a provider today; call with the provider's earnings locked."""
    return _find_left(Overrun.objects.filter(provider=provider_id), now)


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


def _find_left(overruns: QuerySet[Overrun], now: datetime) -> int:
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    paid = _sum(overruns.filter(made_at__gte=today))
    return max(0, settings.HOUSE_BEARS_MICROS_PER_DAY - paid)


def _sum(overruns: QuerySet[Overrun]) -> int:
    return overruns.aggregate(total=Sum("amount_micros", default=0))["total"]
