"""Drawings of one node's page, placed in percent: its cells, its prices, its week, its past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import pairwise

from django.utils import timezone

from marketplace.auction.node_cells import SoldRun
from marketplace.auction.selectors import NodeRow
from marketplace.checks.reliability import ReliabilityDay
from marketplace.common.money import format_usd, format_usd_exact
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.sale_hours import list_sale_stretches
from marketplace.jobs.models import Slice, SliceStatus
from marketplace.web.times import format_clock

#: Rows of the cells' drawing; more jobs at once share the last one.
LANES_MAX = 12
LANE_HEIGHT, LANE_TOP = 28, 26
#: A narrower stay has no room for its name.
LABEL_SHARE = 0.08
TICKS = 6
#: A price this near to the ask is the ask: a price of zero is never quite reached.
_FLAT_WITHIN = 1.005
WEEK_DAYS = 7
_BAD_ENDS = (SliceStatus.LOST, SliceStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Block:
    """One job's stay on the node."""

    x: str
    width: str
    y: int
    #: ``done``, ``bad``, ``now`` or ``ahead``.
    tone: str
    name: str
    #: The name where there is room for it.
    label: str
    #: Its state, and what it is, in words.
    state: str
    title: str
    job_id: str | None
    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class Gantt:
    """The cells of a node over time."""

    blocks: tuple[Block, ...]
    axis: tuple[tuple[str, str], ...]
    now: str
    height: int


def build_gantt(
    *, zone: Zone, past: Sequence[Slice], ahead: Sequence[SoldRun], now: datetime
) -> Gantt:
    """Draw the last half horizon of a node as it was, and the next one as it is sold."""
    half = timedelta(seconds=zone.slot_s * zone.horizon_slots / 2)
    begin, end = now - half, max([now + half, *(run.ends_at for run in ahead)])
    running = {held.job_id for held in past if held.closed_at is None}
    lanes = _Lanes()
    blocks: list[Block] = []
    stays = [
        # Of the cell that its job is in, what is left.
        (max(starts, now if tone == "ahead" and job_id in running else begin), ends, tone, job_id)
        for starts, ends, tone, job_id in [*map(_read_slice, past), *map(_read_run, ahead)]
    ]
    for starts, ends, tone, job_id in sorted(stays, key=lambda stay: (stay[0], stay[3] or "")):
        shown = starts, min(ends or now, end)
        if shown[0] >= shown[1]:
            continue
        width = (shown[1] - shown[0]) / (end - begin)
        blocks.append(
            Block(
                x=_place(shown[0], begin, end),
                width=_share(width),
                y=LANE_TOP + lanes.take(job_id, *shown) * LANE_HEIGHT,
                tone=tone,
                name=_shorten(job_id),
                label=_shorten(job_id) if width >= LABEL_SHARE else "",
                state=_STATES[tone],
                title=f"{_shorten(job_id)} {_WORDS[tone]}, {format_clock(starts, now)} to "
                f"{format_clock(shown[1], now)}",
                job_id=job_id,
                starts_at=starts,
                ends_at=shown[1],
            )
        )
    return Gantt(
        blocks=tuple(blocks),
        axis=_draw_axis(begin, end, now),
        now=_place(now, begin, end),
        height=LANE_TOP + max(1, len(lanes.free_from)) * LANE_HEIGHT,
    )


class _Lanes:
    """Rows of the drawing: a job goes on in the row that it had, where that is free."""

    def __init__(self) -> None:
        self.free_from: list[datetime] = []
        self.of_job: dict[str | None, int] = {}

    def take(self, job_id: str | None, begins: datetime, ends: datetime) -> int:
        """The row of a stay, which is taken until it ends."""
        free = [k for k, since in enumerate(self.free_from) if since <= begins]
        own = self.of_job.get(job_id)
        lane = own if own in free else next(iter(free), len(self.free_from))
        lane = min(lane, LANES_MAX - 1)
        self.free_from[lane : lane + 1] = [ends]
        self.of_job[job_id] = lane
        return lane


_STATES = {"done": "Ran", "bad": "Lost", "now": "Runs", "ahead": "Planned"}
_WORDS = {"done": "ran here", "bad": "was lost here", "now": "runs here", "ahead": "is planned"}


def _read_slice(held: Slice) -> tuple[datetime, datetime | None, str, str | None]:
    if held.closed_at is None:
        return held.opened_at, None, "now", held.job_id
    is_bad = held.status in _BAD_ENDS
    return held.opened_at, held.closed_at, "bad" if is_bad else "done", held.job_id


def _read_run(run: SoldRun) -> tuple[datetime, datetime | None, str, str | None]:
    return run.starts_at, run.ends_at, "ahead", run.job_id


def _shorten(job_id: str | None) -> str:
    return "Express" if job_id is None else f"Job {job_id[-6:]}"


def _draw_axis(begin: datetime, end: datetime, now: datetime) -> tuple[tuple[str, str], ...]:
    seconds = (end - begin) < timedelta(minutes=TICKS)
    return tuple(
        (
            _share(k / TICKS),
            format_clock(begin + (end - begin) * k / TICKS, now, seconds=seconds),
        )
        for k in range(1, TICKS)
    )


@dataclass(frozen=True, slots=True)
class PriceGraph:
    """What one whole slot of a node sells for, over the slots on sale, and its ask under it."""

    #: In a box of 100 by 100.
    path: str
    area: str
    ask_y: str
    ask: str
    low: str
    high: str
    #: No price is above the ask, but for what nobody could see.
    is_flat: bool
    #: Stretches of slots with share sold, as ``(x, width, height, title)``.
    sold: tuple[tuple[str, str, str, str], ...]
    #: Times at the begin, the quarters and the end.
    axis: tuple[str, ...]


def build_price_line(
    *, row: NodeRow, capacity: float, first_slot_at: datetime, slot_s: float, now: datetime
) -> PriceGraph:
    """Draw a node's posted prices, which anybody may read, over its ask."""
    prices = [row.ask_micros + price * capacity for price in row.compute_price]
    top = max(*prices, row.ask_micros, 1) * 1.15
    columns = len(prices)
    points = [
        f"{k / columns * 100:.2f} {100 - price / top * 100:.2f}"
        for price, at in zip(prices, range(columns), strict=True)
        for k in (at, at + 1)
    ]
    line = "M" + "L".join(points)
    return PriceGraph(
        path=line,
        area=f"{line}L100 100L0 100Z",
        ask_y=f"{100 - row.ask_micros / top * 100:.2f}",
        ask=format_usd_exact(row.ask_micros),
        low=format_usd(round(min(prices))),
        high=format_usd(round(max(prices))),
        is_flat=max(prices) <= row.ask_micros * _FLAT_WITHIN,
        sold=tuple(
            (
                _share(k / columns),
                _share(1 / columns),
                _share(share),
                f"{format_clock(first_slot_at + timedelta(seconds=slot_s * k), now, seconds=True)}:"
                f" {share:.0%} sold",
            )
            for k, share in enumerate(row.compute_sold)
            if share > 0
        ),
        axis=tuple(
            format_clock(first_slot_at + timedelta(seconds=slot_s * columns * k / 4), now)
            for k in range(5)
        ),
    )


@dataclass(frozen=True, slots=True)
class WeekDay:
    """One day of the calendar, in the visitor's zone."""

    label: str
    is_today: bool
    #: ``(x, width, title)`` of each stretch in which the node is offered.
    stretches: tuple[tuple[str, str, str], ...]
    #: In words.
    text: str


@dataclass(frozen=True, slots=True)
class Week:
    """When a node is offered in the next seven days."""

    days: tuple[WeekDay, ...]
    #: Where the present moment lies in today's row.
    now: str
    hours: int


def build_week(node: Node, *, now: datetime) -> Week:
    """Draw the hours of the coming week in the visitor's zone; clocks may change in it."""
    zone = timezone.get_current_timezone()
    today = timezone.localtime(now).date()
    midnights = [
        datetime.combine(today + timedelta(days=k), time(), zone) for k in range(WEEK_DAYS + 1)
    ]
    offered = list_sale_stretches(node, since=midnights[0], until=midnights[-1], now=now)
    days: list[WeekDay] = []
    for begin, end in pairwise(midnights):
        parts = [
            (max(since, begin), min(until, end))
            for since, until in offered
            if since < end and until > begin
        ]
        words = [f"{_clock(since)} to {_clock(until, ends=True)}" for since, until in parts]
        days.append(
            WeekDay(
                label=f"{begin:%a} {begin.day}",
                is_today=begin == midnights[0],
                stretches=tuple(
                    (
                        _place(since, begin, end),
                        _share((until - since) / (end - begin)),
                        f"{begin:%A}, {said}",
                    )
                    for (since, until), said in zip(parts, words, strict=True)
                ),
                text=", ".join(words) or "not offered",
            )
        )
    seconds = sum((until - since).total_seconds() for since, until in offered)
    return Week(tuple(days), _place(now, midnights[0], midnights[1]), round(seconds / 3600))


def _clock(at: datetime, *, ends: bool = False) -> str:
    said = f"{timezone.localtime(at):%H:%M}"
    return "24:00" if ends and said == "00:00" else said


def build_strip(days: Sequence[ReliabilityDay]) -> list[tuple[str, str]]:
    """The tone and the words of each day of a node's past."""
    return [(_find_tone(day), _describe_day(day)) for day in days]


def _find_tone(day: ReliabilityDay) -> str:
    if day.failed or (day.lost and day.lost * 2 >= day.slices):
        return "no"
    if day.lost:
        return "warn"
    return "ok" if day.slices else "none"


def _describe_day(day: ReliabilityDay) -> str:
    if not day.slices and not day.failed:
        return f"{day.day:%-d %b}: no work"
    words = f"{day.day:%-d %b}: {day.slices - day.lost} of {day.slices} ended well"
    return f"{words}, {day.failed} checks failed" if day.failed else words


def build_speed_bars(node: Node) -> list[tuple[str, str, str, str]]:
    """Bars of the last measurements beside the self-test: ``(x, y, height, title)``."""
    values = [node.self_test_speed, *node.measured_speeds]
    most = max(values)
    return [
        (
            _share(k / len(values)),
            _share(1 - value / most),
            _share(value / most),
            f"{'Self-test' if k == 0 else 'At work'}: {value:,.0f} units a second",
        )
        for k, value in enumerate(values)
    ]


def _place(at: datetime, begin: datetime, end: datetime) -> str:
    return _share((at - begin) / (end - begin))


def _share(share: float) -> str:
    return f"{share * 100:.2f}%"
