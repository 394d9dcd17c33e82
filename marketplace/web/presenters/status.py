"""What the status page says: each part now, each model's machines, and the last ninety days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from django.db.models import Count, Q

from marketplace.auction.alerts import KEPT_FOR, Incident, join_spans
from marketplace.auction.models import Bid, BidStatus, MarketHead
from marketplace.auction.probes import HealthPart, HealthProbe
from marketplace.fleet.models import ABSENT, Node, NodeStatus, Zone


@dataclass(frozen=True, slots=True)
class PartWords:
    """How customers read of a part."""

    label: str
    works: str
    #: While it does not work, and afterwards.
    is_away: str
    was_away: str


PARTS = {
    HealthPart.LANE: PartWords(
        "Prices and decisions",
        "Bids are decided.",
        "No bid is decided. Bids that wait keep their place and their money.",
        "Bids were not decided, or late",
    ),
    HealthPart.PRICES: PartWords(
        "New prices",
        "Prices follow what is sold and asked for.",
        "Prices stand still: bids are decided at those before.",
        "Prices stood still",
    ),
    HealthPart.WORKER: PartWords(
        "Jobs",
        "Jobs are followed and settled.",
        "Jobs are not followed: progress and results come late.",
        "Progress and results of jobs came late",
    ),
    HealthPart.BEAT: PartWords(
        "Clock",
        "Slots begin and end in time.",
        "No slot begins, and nothing moves. What nodes train goes on.",
        "Slots did not begin in time",
    ),
    HealthPart.NODES: PartWords(
        "Machines",
        "Machines are on sale for every model.",
        "A model has no machine on sale: its bids are refused.",
        "A model had no machine on sale",
    ),
    HealthPart.MONEY: PartWords(
        "Payments",
        "Payments are made, and the books balance.",
        "Payments are delayed. Nothing is lost; the operator is told.",
        "Payments were delayed",
    ),
}


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A part now."""

    label: str
    is_ok: bool
    text: str
    since: datetime | None


def describe_parts(probes: Sequence[HealthProbe]) -> list[PartStatus]:
    """Give each part of the market, and since when it is away if it is."""
    found: list[PartStatus] = []
    for part, words in PARTS.items():
        broken = [probe for probe in probes if probe.part == part and not probe.is_ok]
        since = min((probe.since for probe in broken if probe.since), default=None)
        text = words.is_away if broken else words.works
        found.append(PartStatus(words.label, not broken, text, since))
    return found


@dataclass(frozen=True, slots=True)
class ZoneStatus:
    """What a model has now."""

    zone: Zone
    online: int = 0
    nodes: int = 0
    #: Machines that are rented when they are sold.
    offered: int = 0
    waiting: int = 0
    #: When its log last grew.
    logged_at: datetime | None = None


def describe_zones(zones: Sequence[Zone]) -> list[ZoneStatus]:
    """Count machines and waiting bids by model; three queries, however many there are."""
    nodes = Node.objects.exclude(status__in=ABSENT).values("zone_id")
    counted = nodes.annotate(
        nodes=Count("pk"),
        online=Count("pk", filter=Q(status=NodeStatus.ONLINE)),
        offered=Count("pk", filter=Q(status=NodeStatus.OFFERED)),
    )
    of_nodes = {row.pop("zone_id"): row for row in counted}
    pending = Bid.objects.filter(status=BidStatus.PENDING).values_list("zone_id")
    waiting = dict(pending.annotate(bids=Count("pk")))
    logged = dict(MarketHead.objects.values_list("zone_id", "updated_at"))
    return [
        ZoneStatus(
            zone,
            waiting=waiting.get(zone.pk, 0),
            logged_at=logged.get(zone.pk),
            **of_nodes.get(zone.pk, {}),
        )
        for zone in zones
    ]


@dataclass(frozen=True, slots=True)
class DayStatus:
    """A day of the strip."""

    day: date
    #: Minutes in which some part did not work.
    away_min: int

    @property
    def tone(self) -> str:
        if not self.away_min:
            return "ok"
        return "warn" if self.away_min < 10 else "no"


def summarize_days(incidents: Sequence[Incident], *, now: datetime) -> list[DayStatus]:
    """Give the last ninety days, the oldest first, in UTC."""
    spans = join_spans((each.begun_at, min(each.ended_at or now, now)) for each in incidents)
    days: list[DayStatus] = []
    for back in range(KEPT_FOR.days - 1, -1, -1):
        begin = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=back)
        end = begin + timedelta(days=1)
        away = sum(
            (max(timedelta(), min(until, end) - max(since, begin)) for since, until in spans),
            timedelta(),
        )
        days.append(DayStatus(begin.date(), -(-away // timedelta(minutes=1))))
    return days
