"""How far a node can be relied on, by what became of its slices and by spot checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo

from django.db.models import Count, Q
from django.db.models.functions import TruncDate

from marketplace.checks.models import SpotCheck
from marketplace.fleet.models import Node
from marketplace.jobs.models import Slice, SliceStatus

WINDOW = timedelta(days=30)
#: Slices that a node without a past counts as having ended well, beside one that did not.
_PRIOR_GOOD, _PRIOR_ALL = 9, 10
#: Slices that a node lost, or failed by its own fault.
_BAD = Q(status=SliceStatus.LOST) | Q(status=SliceStatus.FAILED, result__fault="system")
#: The latest of what counted against a node that is shown with its reason.
BLEMISHES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Reliability:
    """Of one node in the last 30 days."""

    #: Slices that ended, and those that the node lost or failed.
    slices: int = 0
    lost: int = 0
    #: Spot checks of its work that another node's figures agreed with, and those that set it aside.
    agreed: int = 0
    failed: int = 0
    #: Opinions against it that no second checker has confirmed yet.
    disputed: int = 0

    @property
    def score(self) -> float:
        """Share of slices that end well, from 0 to 1; 0 for a node that failed a check."""
        if self.failed:
            return 0.0
        return (self.slices - self.lost + _PRIOR_GOOD) / (self.slices + _PRIOR_ALL)


def measure_reliability(node_ids: Iterable[str], *, now: datetime) -> dict[str, Reliability]:
    """Each node's reliability, by its id."""
    ids = list(node_ids)
    since = now - WINDOW
    ended = Slice.objects.filter(node__in=ids, closed_at__gt=since)
    counts = {
        row["node"]: row
        for row in ended.values("node").annotate(slices=Count("pk"), lost=Count("pk", filter=_BAD))
    }
    checks = SpotCheck.objects.filter(slice__node__in=ids, created_at__gt=since)
    verdicts = {
        row["slice__node"]: row
        for row in checks.values("slice__node").annotate(
            agreed=Count("pk", filter=Q(agrees=True)),
            failed=Count("pk", filter=Q(failed_at__isnull=False)),
            disputed=Count(
                "pk",
                filter=Q(
                    agrees=False,
                    failed_at=None,
                    confirms=None,
                    confirmation__isnull=True,
                ),
            ),
        )
    }
    found = {}
    for node_id in ids:
        counted, said = counts.get(node_id, {}), verdicts.get(node_id, {})
        found[node_id] = Reliability(
            slices=counted.get("slices", 0),
            lost=counted.get("lost", 0),
            agreed=said.get("agreed", 0),
            failed=said.get("failed", 0),
            disputed=said.get("disputed", 0),
        )
    return found


@dataclass(frozen=True, slots=True)
class ReliabilityDay:
    """What became of a node's slices on one day."""

    day: date
    slices: int
    lost: int
    #: Spot checks of its work that set it aside.
    failed: int


def list_reliability_days(*, node: Node, now: datetime, zone: tzinfo) -> list[ReliabilityDay]:
    """Each of the days that the score looks at, the oldest first; ``zone`` says when one begins."""
    since = now - WINDOW
    ended = Slice.objects.filter(node=node, closed_at__gt=since)
    counts = {
        day: (slices, lost)
        for day, slices, lost in ended.annotate(day=TruncDate("closed_at", tzinfo=zone))
        .values_list("day")
        .annotate(slices=Count("pk"), lost=Count("pk", filter=_BAD))
    }
    checks = SpotCheck.objects.filter(slice__node=node, failed_at__gt=since)
    failed = dict(
        checks.annotate(day=TruncDate("failed_at", tzinfo=zone))
        .values_list("day")
        .annotate(Count("pk"))
    )
    today = now.astimezone(zone).date()
    listed = (today - timedelta(days=back) for back in range(WINDOW.days, -1, -1))
    return [
        ReliabilityDay(day, *counts.get(day, (0, 0)), failed=failed.get(day, 0)) for day in listed
    ]


@dataclass(frozen=True, slots=True)
class Blemish:
    """One thing that counted against a node, and why."""

    at: datetime
    job_id: str
    reason: str


def list_blemishes(*, node: Node, now: datetime) -> list[Blemish]:
    """The latest slices that a node lost or failed, and checks that it failed; newest first."""
    since = now - WINDOW
    lost = Slice.objects.filter(_BAD, node=node, closed_at__gt=since)
    found = [
        Blemish(at, job_id, reason or "The slice was lost.")
        for at, job_id, reason in lost.order_by("-closed_at").values_list(
            "closed_at", "job_id", "reason"
        )[:BLEMISHES_SHOWN]
    ]
    checks = SpotCheck.objects.filter(slice__node=node, failed_at__gt=since)
    found += [
        Blemish(at, job_id, "Another provider's node trained the same steps to another result.")
        for at, job_id in checks.order_by("-failed_at").values_list("failed_at", "job_id")[
            :BLEMISHES_SHOWN
        ]
    ]
    return sorted(found, key=lambda one: one.at, reverse=True)[:BLEMISHES_SHOWN]
