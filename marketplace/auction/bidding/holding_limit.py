"""Bids that would have one organisation hold more of a new zone than it may."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import inf

from django.db.models import Sum

from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import build_node_spec, list_nodes_on_sale, slot_at
from marketplace.jobs.models import Job, JobStatus
from scheduler.auction.holding_limit import DAYS, MOST_SHARE, OTHERS_WON, find_most_held


def check_holding_limit(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse those bids that would take an organisation above the limit of a new zone.

    Call while holding the organisations' wallets, so that no two are placed at once. The
    bids before count for those after; codes: ``holding_limit``.
    """
    refused: dict[int, UserError] = {}
    left: dict[tuple[str, str], float | None] = {}
    for index, bid in drafts.items():
        key = (bid.zone_id, bid.organisation_id)
        if key not in left:
            left[key] = find_room_left(zone=bid.zone, organisation_id=bid.organisation_id, now=now)
        room = left[key]
        if room is None:
            continue
        if bid.compute_demand > room:
            refused[index] = UserError(
                "holding_limit",
                "This market is new: until others have bought in it, one organisation may hold "
                f"{MOST_SHARE:.0%} of what is on sale, waiting bids included. Bid for less work, "
                "or again when some of yours is done.",
                param="dataset",
            )
        else:
            left[key] = room - bid.compute_demand
    return refused


def find_room_left(*, zone: Zone, organisation_id: str, now: datetime) -> float | None:
    """Samples that an organisation may still bid for; ``None``: as many as it likes."""
    if not zone.settings.get("holding_limit", True):
        return None
    if now - zone.created_at > timedelta(days=DAYS):
        return None
    nodes = [build_node_spec(zone, node).compute_capacity for node in list_nodes_on_sale(zone)]
    most = find_most_held(nodes, slots=zone.horizon_slots)
    if most == inf or _has_sold_to_others(zone, organisation_id):
        return None
    return most - _sum_held(zone, organisation_id, now=now)


def _has_sold_to_others(zone: Zone, organisation_id: str) -> bool:
    won = Bid.objects.filter(zone=zone, status=BidStatus.ADMITTED)
    # A job that was cancelled may have cost nothing, and one that failed, too.
    stopped = Job.objects.filter(zone=zone, status__in=[*Job.STOPPED, JobStatus.FAILED])
    others = won.exclude(organisation_id=organisation_id).exclude(pk__in=stopped.values("bid_id"))
    return others.values("pk")[:OTHERS_WON].count() >= OTHERS_WON


def _sum_held(zone: Zone, organisation_id: str, *, now: datetime) -> float:
    """Samples of its waiting bids and of the cells its jobs still have before them."""
    waiting = Bid.objects.filter(
        zone=zone, organisation_id=organisation_id, status=BidStatus.PENDING
    ).aggregate(total=Sum("compute_demand", default=0.0))
    cells = Reservation.objects.filter(
        zone=zone,
        bid__organisation_id=organisation_id,
        slot__gte=slot_at(zone, now),
        released_at=None,
    ).aggregate(total=Sum("samples", default=0.0))
    return waiting["total"] + cells["total"]
