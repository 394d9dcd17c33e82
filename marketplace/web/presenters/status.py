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
class DayStatus:
    """A day of the strip."""

    day: date
    #: Minutes of it that are over and on record, and in which the part did not work.
    known_min: int
    away_min: int

    @property
    def tone(self) -> str:
        if not self.known_min:
            return "none"
        if not self.away_min:
            return "ok"
        return "warn" if self.away_min < 10 else "no"

    @property
    def words(self) -> str:
        if not self.known_min:
            return "not on record"
        return f"{self.away_min} min away" if self.away_min else "no incident"


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A part now, and in the last ninety days."""

    label: str
    is_ok: bool
    text: str
    since: datetime | None
    days: tuple[DayStatus, ...]

    @property
    def up_share(self) -> float | None:
        """Share of the time on record in which it worked; ``None`` where none is."""
        known = [day for day in self.days if day.known_min]
        minutes = sum(day.known_min for day in known)
        return 1 - sum(day.away_min for day in known) / minutes if minutes else None

    @property
    def days_known(self) -> int:
        return sum(day.known_min > 0 for day in self.days)


def describe_parts(
    probes: Sequence[HealthProbe],
    incidents: Sequence[Incident],
    *,
    begun_at: datetime | None,
    now: datetime,
) -> list[PartStatus]:
    """Give each part of the market, since when it is away if it is, and how it was.

    ``begun_at`` is when the market began: nothing is said of what was before.
    """
    found: list[PartStatus] = []
    for part, words in PARTS.items():
        broken = [probe for probe in probes if probe.part == part and not probe.is_ok]
        since = min((probe.since for probe in broken if probe.since), default=None)
        text = words.is_away if broken else words.works
        own = [incident for incident in incidents if incident.part == part]
        days = summarize_days(own, begun_at=begun_at, now=now)
        found.append(PartStatus(words.label, not broken, text, since, tuple(days)))
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


def summarize_days(
    incidents: Sequence[Incident], *, begun_at: datetime | None, now: datetime
) -> list[DayStatus]:
    """Give the last ninety days, the oldest first, in UTC."""
    spans = join_spans((each.begun_at, min(each.ended_at or now, now)) for each in incidents)
    known_from = now if begun_at is None else begun_at
    days: list[DayStatus] = []
    for back in range(KEPT_FOR.days - 1, -1, -1):
        begin = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=back)
        first, last = max(begin, known_from), min(begin + timedelta(days=1), now)
        away = sum(
            (max(timedelta(), min(until, last) - max(since, first)) for since, until in spans),
            timedelta(),
        )
        known = max(timedelta(), last - first)
        days.append(DayStatus(begin.date(), _count_minutes(known), _count_minutes(away)))
    return days


def _count_minutes(span: timedelta) -> int:
    """Whole minutes, begun ones too."""
    return -(-span // timedelta(minutes=1))
