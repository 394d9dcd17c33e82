"""Bids of an organisation whose cancelled jobs had the market start too many machines for naught.

A machine that was sold before it was rented is started at the house's cost. Who buys a slot of it
pays for the start; a job that is cancelled after it pays no more than its reservation fee.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef

from marketplace.auction.models import Bid, Reservation
from marketplace.common.errors import Conflict, UserError
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import count_offered_nodes
from marketplace.jobs.models import Job, JobStatus

#: A start counts for so long.
COUNTED_FOR = timedelta(days=1)


def refuse_wasted_boots(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse bids that may have a machine started, of organisations that wasted too many.

    None is refused where a zone sells machines that run and no others. Call while holding the
    organisations' wallets; code: ``boots_wasted``.
    """
    starts: dict[str, bool] = {}
    wasted: dict[str, list[datetime]] = {}
    refused: dict[int, UserError] = {}
    for index, bid in drafts.items():
        if bid.zone_id not in starts:
            starts[bid.zone_id] = count_offered_nodes(bid.zone) > 0
        if not starts[bid.zone_id]:
            continue
        owner = bid.organisation_id
        if owner not in wasted:
            wasted[owner] = list_wasted_boots(organisation_id=owner, now=now)
        if len(wasted[owner]) >= settings.CANCELLED_BOOTS_A_DAY:
            refused[index] = _build_refusal(wasted[owner])
    return refused


def list_wasted_boots(*, organisation_id: str, now: datetime) -> list[datetime]:
    """When machines were started in the last day for jobs that an organisation then cancelled.

    A machine counts once, and only where nothing ran on it and nothing else is sold on it. Oldest
    first.
    """
    on_node = Reservation.objects.filter(node=OuterRef("pk"))
    # One that lost its cells before it was cancelled, or was cancelled before, is not to blame.
    cancelled = Job.objects.filter(
        bid_id=OuterRef("bid_id"),
        status=JobStatus.CANCELLED,
        finished_at__gte=OuterRef(OuterRef("rented_at")),
        finished_at__lte=OuterRef("released_at"),
    )
    its_own = on_node.filter(Exists(cancelled), bid__organisation_id=organisation_id)
    started = Node.objects.filter(rented_at__gt=now - COUNTED_FOR)
    wasted = started.filter(Exists(its_own)).exclude(Exists(on_node.filter(released_at=None)))
    return list(wasted.order_by("rented_at").values_list("rented_at", flat=True))


def _build_refusal(wasted: list[datetime]) -> Conflict:
    again_at = wasted[len(wasted) - settings.CANCELLED_BOOTS_A_DAY] + COUNTED_FOR
    return Conflict(
        "boots_wasted",
        f"The market started {len(wasted)} machines in 24 hours for jobs that your organisation "
        "then cancelled; it pays for no more. This zone sells machines that would have to be "
        f"started. Bid here again from {again_at:%d %B, %H:%M} UTC on.",
        param="zone",
    )
