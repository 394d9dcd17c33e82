"""The only row locks of this app. Offers are locked after their owners' wallets."""

from __future__ import annotations

from collections.abc import Collection

from marketplace.warm.models import Offer


def lock_offers(*, offer_ids: Collection[str]) -> list[Offer]:
    """Those of these offers that there are."""
    offers = Offer.objects.select_for_update(of=("self",))
    return list(offers.filter(pk__in=offer_ids).order_by("pk"))
