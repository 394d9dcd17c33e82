"""What may be asked of the lanes; nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Q, Sum

from marketplace.auction.models import Bid, Reservation
from marketplace.auction.selectors import annotate_refunds
from marketplace.express.models import (
    BankPrompt,
    ExpressLane,
    ExpressRequest,
    LookupRecord,
    RequestStatus,
    Seat,
)
from marketplace.express.seat_autoscaler import compute_hourly_cost
from marketplace.express.seats import load_seats
from marketplace.fleet.models import Node, NodeStatus
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.models import Job, JobStatus

#: How far back a lane's figures go.
SHOWN = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """A lane as its operator sees it: now, and over the last hour."""

    lane: ExpressLane
    #: Seats bought, those without a job, and those bought for a burst.
    seats: int
    idle: int
    burst: int
    #: Places of jobs on the zone's nodes that no one has bought in the next slot.
    cold: int
    requests: int
    admitted: int
    offered: int
    refused: int
    #: Jobs that ended after the SLO certified to them, or are over it.
    late: int
    #: What its seats cost in an hour, by the price of the last ones.
    hourly_micros: int
    #: Paid by the lane for its seats, and to it by its jobs.
    cost_micros: int
    income_micros: int

    @property
    def busy(self) -> int:
        return self.seats - self.idle


@dataclass(frozen=True, slots=True)
class BankFigures:
    """The prompt bank as a whole."""

    prompts: int
    shared: int
    lookups: int
    hits: int
    #: Mean of the loss that a hit saved.
    mean_gain: float


def summarize_lanes(*, now: datetime) -> list[LaneFigures]:
    """Every lane's figures, by zone."""
    lanes = ExpressLane.objects.select_related("zone", "organisation").order_by("zone__name")
    return [_summarize(lane, now=now) for lane in lanes]


def _summarize(lane: ExpressLane, *, now: datetime) -> LaneFigures:
    since = now - SHOWN
    seats = load_seats(lane, now=now)
    requests = ExpressRequest.objects.filter(zone=lane.zone_id, created_at__gte=since)
    statuses = list(requests.values_list("status", flat=True))
    bids = list(requests.exclude(bid_id="").values_list("bid_id", flat=True))
    late = Job.objects.filter(bid_id__in=bids).filter(
        Q(finished_at__gt=F("deadline_at"))
        | Q(status__in=Job.ACTIVE, deadline_at__lt=now)
        | Q(status=JobStatus.FAILED)
    )
    bought = Seat.objects.filter(lane=lane, created_at__gte=since).values("pk")
    paid = annotate_refunds(Bid.objects.filter(pk__in=bought)).aggregate(
        sum=Sum(F("payment_micros") - F("refund_micros"))
    )["sum"]
    earned = annotate_refunds(Bid.objects.filter(pk__in=bids)).aggregate(
        sum=Sum(F("payment_micros") - F("refund_micros") - F("credit_micros"))
    )["sum"]
    return LaneFigures(
        lane=lane,
        seats=len(seats),
        idle=sum(seat.idle_since is not None for seat in seats),
        burst=sum(seat.is_burst for seat in seats),
        cold=count_unsold(lane, now=now),
        requests=len(statuses),
        admitted=statuses.count(RequestStatus.ADMITTED),
        offered=statuses.count(RequestStatus.OFFERED),
        refused=statuses.count(RequestStatus.REFUSED),
        late=late.count(),
        hourly_micros=round(compute_hourly_cost(lane) * len(seats)),
        cost_micros=paid or 0,
        income_micros=earned or 0,
    )


def count_unsold(lane: ExpressLane, *, now: datetime) -> int:
    """Places on the zone's nodes that are on sale in the next slot and free."""
    zone = lane.zone
    nodes = Node.objects.filter(zone=zone, status=NodeStatus.ONLINE)
    sold = Reservation.objects.filter(
        zone=zone, slot=slot_at(zone, now) + 1, released_at__isnull=True, node__in=nodes
    )
    return max(0, nodes.count() * zone.jobs_per_node - sold.count())


def summarize_bank() -> BankFigures:
    """What the prompt bank has, and what it was good for."""
    present = BankPrompt.objects.filter(withdrawn_at__isnull=True)
    hits = BankPrompt.objects.aggregate(hits=Sum("hits"), gain=Sum("gain"))
    total = hits["hits"] or 0
    return BankFigures(
        prompts=present.count(),
        shared=present.filter(is_shared=True).count(),
        lookups=LookupRecord.objects.filter(lookup__isnull=False).count(),
        hits=total,
        mean_gain=(hits["gain"] or 0.0) / total if total else 0.0,
    )
