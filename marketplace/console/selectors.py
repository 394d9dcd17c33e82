"""What the overview shows, read at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Avg, Count, F, Max, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from marketplace.auction.models import WAITS_SINCE, Bid, BidStatus, MarketHead
from marketplace.auction.probes import BOOKS_TASK, HealthProbe, run_probes
from marketplace.auction.selectors import (
    annotate_refunds,
    list_bids_not_settled,
    list_bids_set_aside,
    list_zone_pricing,
)
from marketplace.common.models import Heartbeat
from marketplace.fleet.models import ABSENT, Node, NodeStatus, Provider, Zone
from marketplace.fleet.selectors import list_waiting_providers
from marketplace.jobs.models import Job
from marketplace.payments.funding import list_open_funds_requests
from marketplace.payments.models import FundsRequest
from marketplace.payments.selectors import get_house_balances
from marketplace.tiers.selectors import list_machines

BIDS_LISTED = 15
SILENT_NAMED = 8
NODES_LISTED = 20
DAY = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class DayFigures:
    """The bids of the last 24 hours."""

    bids: int
    admitted: int
    on_price: int
    on_time: int
    on_memory: int
    #: For want of a verified node.
    on_trust: int
    pending: int
    #: Micro-dollars that winners were charged, what of it went back, and their limits.
    charged: int
    refunded: int
    offered: int
    mean_wait: timedelta | None
    longest_wait: timedelta | None

    @property
    def admitted_share(self) -> float | None:
        return self.admitted / self.bids if self.bids else None

    @property
    def mean_wait_s(self) -> float | None:
        return None if self.mean_wait is None else self.mean_wait.total_seconds()

    @property
    def longest_wait_s(self) -> float | None:
        return None if self.longest_wait is None else self.longest_wait.total_seconds()


@dataclass(frozen=True, slots=True)
class Overview:
    now: datetime
    figures: DayFigures
    hours: list[dict[str, Any]]
    #: What does not work now.
    troubles: list[HealthProbe]
    #: When the books were last checked; ``None``: never.
    books: Heartbeat | None
    balances: dict[str, int]
    heads: Sequence[MarketHead]
    #: Some of them, as many as a page names one by one, and how many there are.
    nodes: Sequence[Node]
    silent_nodes: Sequence[Node]
    all_nodes: int
    silent: int
    bids: Sequence[Bid]
    #: Jobs by status: what is not over, and what ended in the last 24 hours.
    jobs: dict[str, int]
    machines: Sequence[Any]
    zones: Sequence[Zone]
    set_aside: Sequence[Bid]
    #: Their jobs have ended, and the money could not be moved yet.
    not_settled: Sequence[Bid]
    waiting_providers: Sequence[Provider]
    funds_requests: Sequence[FundsRequest]


def load_overview(*, now: datetime) -> Overview:
    nodes = Node.objects.exclude(status__in=ABSENT)
    silent = Node.objects.filter(status=NodeStatus.OFFLINE)
    day = Bid.objects.filter(created_at__gt=now - DAY)
    return Overview(
        now=now,
        figures=_count_day(day),
        hours=_draw_hours(now),
        books=Heartbeat.objects.filter(task=BOOKS_TASK).first(),
        troubles=[probe for probe in run_probes(now=now) if not probe.is_ok],
        balances=get_house_balances(),
        heads=list(MarketHead.objects.select_related("zone").order_by("zone__name")),
        nodes=_list_first(nodes, NODES_LISTED),
        silent_nodes=_list_first(silent, SILENT_NAMED),
        all_nodes=nodes.count(),
        silent=silent.count(),
        bids=list(
            Bid.objects.select_related("zone", "organisation").order_by("-created_at")[:BIDS_LISTED]
        ),
        jobs=_count_jobs(now),
        machines=list_machines(now=now),
        zones=list(list_zone_pricing()),
        set_aside=list(list_bids_set_aside()),
        not_settled=list(list_bids_not_settled()),
        waiting_providers=list(list_waiting_providers()),
        funds_requests=list_open_funds_requests(),
    )


def _list_first(nodes: QuerySet[Node], limit: int) -> list[Node]:
    named = nodes.select_related("zone", "gpu_type", "provider__organisation")
    return list(named.order_by("zone__name", "name")[:limit])


def _count_jobs(now: datetime) -> dict[str, int]:
    """Jobs by status, those that are not over and those that ended in the last 24 hours."""
    shown = Job.objects.filter(Q(status__in=Job.ACTIVE) | Q(finished_at__gt=now - DAY))
    return dict(shown.values_list("status").annotate(Count("pk")).order_by("status"))


def _count_day(day: QuerySet[Bid]) -> DayFigures:
    admitted = Q(status=BidStatus.ADMITTED)
    took = F("decided_at") - WAITS_SINCE
    back = annotate_refunds(day.filter(admitted)).aggregate(total=Sum("refund_micros"))["total"]
    return DayFigures(
        refunded=back or 0,
        **day.aggregate(
            bids=Count("pk", filter=~Q(status=BidStatus.CANCELLED)),
            admitted=Count("pk", filter=admitted),
            on_price=Count("pk", filter=Q(refusal="price")),
            on_time=Count("pk", filter=Q(refusal__in=("window", "capacity"))),
            on_memory=Count("pk", filter=Q(refusal="memory")),
            on_trust=Count("pk", filter=Q(refusal="verified")),
            pending=Count("pk", filter=Q(status=BidStatus.PENDING)),
            charged=Coalesce(Sum("payment_micros", filter=admitted), 0),
            # As far as the market was told.
            offered=Coalesce(Sum("price_micros", filter=admitted & Q(asks_price=False)), 0),
            mean_wait=Avg(took),
            longest_wait=Max(took),
        ),
    )


def _draw_hours(now: datetime) -> list[dict[str, Any]]:
    """Admitted and refused in each of the last 24 hours, as heights of bars."""
    counts = [[0, 0] for _ in range(24)]
    # Whenever they were placed: a bid may have waited for its lane.
    answered = Bid.objects.filter(
        status__in=(BidStatus.ADMITTED, BidStatus.REFUSED), decided_at__gt=now - DAY
    )
    for decided_at, status in answered.values_list("decided_at", "status"):
        hour = min(23, int((now - decided_at).total_seconds() // 3600))
        counts[23 - hour][status == BidStatus.REFUSED] += 1
    most = max(1, *(sum(pair) for pair in counts))
    return [
        {
            "x": f"{index / 24 * 100:.2f}%",
            "admitted": admitted,
            "refused": refused,
            "admitted_y": f"{100 - admitted / most * 100:.1f}%",
            "admitted_h": f"{admitted / most * 100:.1f}%",
            "refused_y": f"{100 - (admitted + refused) / most * 100:.1f}%",
            "refused_h": f"{refused / most * 100:.1f}%",
            "at": now - timedelta(hours=23 - index),
        }
        for index, (admitted, refused) in enumerate(counts)
    ]
