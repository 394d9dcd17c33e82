"""What could be rented, on sale before it is: a zone without one provider sells its first job.

While the cap has room, the cheapest offer is listed as a node (``NodeStatus.OFFERED``). Its cells
are on sale from the end of its boot on. The auction treats it as any other node. When a cell is
sold, the machine is rented in time for it and joins as this node; if it does not come up, the node
is lost and its jobs get other plans, as after any loss.

A node is listed with the speed and the memory that the last machine of the same offer measured.
So the first one is rented for nothing but to be measured.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.offered_nodes import end_offer, list_offered_node
from marketplace.fleet.selectors import slot_starts_at
from marketplace.fleet.services import retire_node, set_node_ask
from marketplace.tiers.machines import compute_ask_micros
from marketplace.tiers.models import ListedOffer, Machine, ZoneTiers
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.tier_state import TierState, filter_offers

#: A boot may take this many times as long as the last ones did.
BOOT_MARGIN = 1.5


def rent_sold_offers(*, rented: TierState, offers: Sequence[MachineOffer], now: datetime) -> None:
    """Request the machines of listed offers that are sold and must boot by now.

    One is rented at today's price, or where nothing is known of it, as it was listed; what it
    costs more than when it was sold is the market's.
    """
    zone = rented.tiers.zone
    prices = {offer.name: offer.price_micros_per_h for offer in offers}
    for listing in rented.listed:
        first = rented.sold_ahead.get(listing.node_id)
        boot = timedelta(seconds=listing.node.boot_s)
        if first is None or slot_starts_at(zone, first) - boot > now:
            continue
        offer = MachineOffer(
            name=listing.offer,
            tier=listing.node.tier,
            price_micros_per_h=prices.get(listing.offer, listing.price_micros_per_h),
            boot_s=listing.node.boot_s,
        )
        with transaction.atomic():
            machine = rented.request(offer, reason="Sold before it was rented.", now=now)
            listing.machine = machine
            listing.save(update_fields=["machine"])
        del rented.sold_ahead[listing.node_id]


def list_offers(*, rented: TierState, offers: Sequence[MachineOffer], now: datetime) -> None:
    """Bring what is listed in line with the cheapest offer and the room under the cap."""
    found = filter_offers(offers, serverless=False)
    if not rented.tiers.sells_offers or not found:
        close_unsold_offers(rented=rented, now=now)
        return
    offer = found[0]
    measured = _find_measured(rented.tiers, offer)
    if measured is None:
        close_unsold_offers(rented=rented, now=now)
        if rented.room(serverless=False) > 0 and not rented.coming(serverless=False):
            rented.request(offer, reason="To measure what its kind can do.", now=now)
        return
    room = max(0, rented.room(serverless=False))
    unsold = _list_unsold(rented)
    staying = [
        one
        for one in unsold
        if one.offer == offer.name
        and one.node.status == NodeStatus.OFFERED
        and one.node.available_until_at is None
    ][:room]
    for listing in unsold:
        if listing not in staying:
            _close(rented, listing, now)
    for listing in staying:
        _follow_price(rented, listing, offer, now)
    for _ in range(room - len(staying)):
        _list(rented, offer, measured, now)


def close_unsold_offers(*, rented: TierState, now: datetime) -> None:
    """Take off sale what was not sold."""
    for listing in _list_unsold(rented):
        _close(rented, listing, now)


def compute_offered_ask_micros(tiers: ZoneTiers, price_micros_per_h: int, boot_s: float) -> int:
    """What a slot of a machine that is not rented yet costs.

    Its rent, and that of its boot and of standing idle before it is given back: a buyer of one
    slot has paid for all of them.
    """
    whole_s = tiers.zone.slot_s + boot_s + tiers.idle_s
    return -(
        -compute_ask_micros(tiers.zone, price_micros_per_h) * round(whole_s) // tiers.zone.slot_s
    )


def _list_unsold(rented: TierState) -> list[ListedOffer]:
    return [
        one
        for one in rented.listed
        if one.machine_id is None and one.node_id not in rented.sold_ahead
    ]


def _find_measured(tiers: ZoneTiers, offer: MachineOffer) -> Node | None:
    """The node that the last machine of the offer became."""
    machines = Machine.objects.filter(
        zone=tiers.zone, backend=tiers.backend_of(offer.tier), offer=offer.name
    ).exclude(ready_at=None)
    last = machines.select_related("join_token__node").order_by("-ready_at", "-pk").first()
    return None if last is None or last.join_token is None else last.join_token.node


def _list(rented: TierState, offer: MachineOffer, measured: Node, now: datetime) -> None:
    tiers = rented.tiers
    boot_s = BOOT_MARGIN * rented.boot_s(offer)
    with transaction.atomic():
        node = list_offered_node(
            zone=tiers.zone,
            provider=tiers.provider,
            name=f"{offer.name[:40]}-{secrets.token_hex(4)}",
            tier=offer.tier,
            measured=measured,
            ask_micros=compute_offered_ask_micros(tiers, offer.price_micros_per_h, boot_s),
            boot_s=boot_s,
            now=now,
        )
        listing = ListedOffer.objects.create(
            tiers=tiers,
            node=node,
            offer=offer.name,
            price_micros_per_h=offer.price_micros_per_h,
            listed_at=now,
        )
    rented.listed.append(listing)


def _follow_price(
    rented: TierState, listing: ListedOffer, offer: MachineOffer, now: datetime
) -> None:
    if listing.price_micros_per_h == offer.price_micros_per_h:
        return
    ask_micros = compute_offered_ask_micros(
        rented.tiers, offer.price_micros_per_h, listing.node.boot_s
    )
    with transaction.atomic():
        set_node_ask(node=listing.node, ask_micros=ask_micros, set_by=None, now=now)
        listing.price_micros_per_h = offer.price_micros_per_h
        listing.save(update_fields=["price_micros_per_h"])


def _close(rented: TierState, listing: ListedOffer, now: datetime) -> None:
    """Take it off sale, and at the next tick out of the market.

    A bid that saw it on sale may be decided at the same time; then it is rented.
    """
    on_sale = listing.node.status == NodeStatus.OFFERED
    if on_sale and listing.node.available_until_at is None:
        end_offer(node=listing.node, now=now)
        return
    with transaction.atomic():
        retire_node(node=listing.node, now=now)
        listing.closed_at = now
        listing.save(update_fields=["closed_at"])
    rented.listed.remove(listing)
