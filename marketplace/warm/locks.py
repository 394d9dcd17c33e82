"""The only row locks of this app. A probe is locked alone; offers after their owners' wallets."""

from __future__ import annotations

from collections.abc import Collection

from marketplace.fleet.models import Node
from marketplace.warm.models import Offer, Probe


def lock_probe(*, token: str, node: Node) -> Probe | None:
    """The probe that this node was asked for, if there is one."""
    probes = Probe.objects.select_for_update(of=("self",))
    return probes.filter(token=token, node=node).first()


def lock_offers(*, offer_ids: Collection[str]) -> list[Offer]:
    """Those of these offers that there are."""
    offers = Offer.objects.select_for_update(of=("self",))
    return list(offers.filter(pk__in=offer_ids).order_by("pk"))
