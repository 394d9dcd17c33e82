"""How far a node can be relied on, by what became of its slices and by spot checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Q

from marketplace.checks.models import SpotCheck
from marketplace.jobs.models import Slice, SliceStatus

WINDOW = timedelta(days=30)
#: Slices that a node without a past counts as having ended well, beside one that did not.
_PRIOR_GOOD, _PRIOR_ALL = 9, 10


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
    bad = Q(status=SliceStatus.LOST) | Q(status=SliceStatus.FAILED, result__fault="system")
    ended = Slice.objects.filter(node__in=ids, closed_at__gt=since)
    counts = {
        row["node"]: row
        for row in ended.values("node").annotate(slices=Count("pk"), lost=Count("pk", filter=bad))
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
