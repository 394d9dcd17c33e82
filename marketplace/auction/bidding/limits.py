"""What one organisation may have of a market at a time.

A new organisation may have a few jobs, and in a new zone one organisation may hold a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from math import inf

from django.conf import settings
from django.db.models import Sum

from marketplace.accounts.new_accounts import filter_new
from marketplace.auction.bidding.resuming import refuse_resumed
from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import build_node_spec, list_nodes_on_sale, slot_at
from marketplace.jobs.models import Job, JobStatus
from scheduler.auction.holding_limit import DAYS, MOST_SHARE, OTHERS_WON, find_most_held


def refuse_by_limits(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse those bids that a limit keeps from being placed; the first reason counts.

    Call while holding the organisations' wallets, so that no two are placed at once.
    """
    refused: dict[int, UserError] = {}
    for refuse in (refuse_resumed, refuse_crowds, check_holding_limit):
        refused = refuse(drafts, now=now) | refused
    return refused


def refuse_crowds(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse those bids that would give a new organisation more jobs at a time than it may.

    Call as ``refuse_by_limits``. Bids that wait count as jobs; code: ``new_account_jobs``.
    """
    left = count_job_room({bid.organisation_id for bid in drafts.values()}, now=now)
    refused: dict[int, UserError] = {}
    for index, bid in drafts.items():
        owner = bid.organisation_id
        if owner not in left:
            continue
        if left[owner] <= 0:
            refused[index] = build_crowd_refusal()
        else:
            left[owner] -= 1
    return refused


def count_job_room(organisation_ids: Iterable[str], *, now: datetime) -> dict[str, int]:
    """Count how many more jobs each new organisation may have; others have no limit."""
    new = filter_new(organisation_ids, now=now)
    return {owner: settings.NEW_ACCOUNT_JOBS - _count_jobs(owner) for owner in sorted(new)}


def build_crowd_refusal() -> UserError:
    return UserError(
        "new_account_jobs",
        f"In its first {settings.NEW_ACCOUNT_DAYS} days an organisation may have "
        f"{settings.NEW_ACCOUNT_JOBS} jobs at a time. Ask again when one is done, or ask the "
        "operator of this market.",
        status=429,
    )


def _count_jobs(organisation_id: str) -> int:
    waiting = Bid.objects.filter(organisation=organisation_id, status__in=Bid.OPEN)
    jobs = Job.objects.filter(organisation=organisation_id, status__in=Job.ACTIVE)
    return waiting.count() + jobs.count()


def check_holding_limit(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse those bids that would take an organisation above the limit of a new zone.

    Call as ``refuse_by_limits``. The bids before count for those after; code: ``holding_limit``.
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
        zone=zone, organisation_id=organisation_id, status__in=Bid.OPEN
    ).aggregate(total=Sum("compute_demand", default=0.0))
    cells = Reservation.objects.filter(
        zone=zone,
        bid__organisation_id=organisation_id,
        slot__gte=slot_at(zone, now),
        released_at=None,
    ).aggregate(total=Sum("samples", default=0.0))
    return waiting["total"] + cells["total"]
