"""The operator's page of rented machines: what runs, what it costs, what it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.common import clock
from marketplace.tiers.models import Sample
from marketplace.tiers.selectors import (
    SHOWN,
    TierSummary,
    list_ended_machines,
    list_machines,
    list_recent_bookings,
    list_tier_summaries,
    summarize_day,
)
from marketplace.web.views.requests import PageRequest, operator_page

#: Units of a chart's own; it is stretched to the width of its card.
WIDTH, HEIGHT = 1000.0, 100.0
#: Pressure above this is drawn at the top edge.
PRESSURE_TOP = 4.0
#: How long a measurement, made each minute, is drawn while no other follows.
HOLDS = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    #: ``d`` of one path per line, with the line's tone.
    lines: tuple[tuple[str, str], ...]
    #: Words at the top and the bottom of the y axis, and of now.
    top: str
    now: str
    #: Height of a line to compare with; ``None``: no line.
    mark: float | None = None


@operator_page
@require_GET
def show_machines(request: PageRequest) -> HttpResponse:
    now = clock.now()
    shown = list_machines(now=now)
    context = {
        "now": now,
        "day": summarize_day(now=now),
        "zones": [(zone, draw_charts(zone, now=now)) for zone in list_tier_summaries(now=now)],
        "machines": shown,
        "unasked": sum(one.is_alarming for one in shown),
        "rent_micros": sum(one.machine.price_micros_per_h for one in shown if not one.is_ended),
        "running": sum(not one.is_ended for one in shown),
        "ended": list_ended_machines(now=now),
        "bookings": list_recent_bookings(now=now),
    }
    return render(request, "console/machines.html", context)


def draw_charts(zone: TierSummary, *, now: datetime) -> tuple[Chart, ...]:
    """Pressure, threshold and machines over the last day; none before there are two samples."""
    samples = zone.samples
    if len(samples) < 2:
        return ()
    begun_at = max(samples[0].at, now - SHOWN)
    span_s = max(1.0, (now - begun_at).total_seconds())

    def path(value: Callable[[Sample], float], top: float) -> str:
        return _path(
            [
                ((one.at - begun_at).total_seconds() / span_s, min(1.0, value(one) / top))
                for one in samples
            ],
            longest=HOLDS.total_seconds() / span_s,
        )

    def pressure(one: Sample) -> float:
        return PRESSURE_TOP if one.pressure is None else one.pressure

    highest = max(map(pressure, samples))
    pressed = min(PRESSURE_TOP, max(1.25, highest))
    longest = max(one.threshold_s for one in samples)
    most = max(1, *(max(one.serverless, one.serverful) for one in samples))
    last = samples[-1]
    return (
        Chart(
            title="Pressure",
            lines=((path(pressure, pressed), "c3"),),
            top=f"{pressed:.2f}" if highest <= PRESSURE_TOP else f"{pressed:.0f} and more",
            now="no capacity" if last.pressure is None else f"{last.pressure:.2f} now",
            mark=HEIGHT * (1.0 - 1.0 / pressed),
        ),
        Chart(
            title="Serverless budget (F)",
            lines=((path(lambda one: one.threshold_s, longest * 1.1), "c1"),),
            top=f"{longest * 1.1:.0f} s",
            now=f"{last.threshold_s:.0f} s now",
        ),
        Chart(
            title="Machines",
            lines=(
                (path(lambda one: one.serverful, most * 1.1), "c3"),
                (path(lambda one: one.serverless, most * 1.1), "c2"),
            ),
            top=str(most),
            now=f"{zone.serverless} serverless, {zone.serverful} other now",
        ),
    )


def _path(points: Sequence[tuple[float, float]], *, longest: float) -> str:
    """A line of steps: a measurement holds until the next one, up to a limit."""
    words: list[str] = []
    following = [x for x, _ in points[1:]] + [1.0]
    broken = True
    for (x, y), until in zip(points, following, strict=True):
        height = f"{(1.0 - y) * HEIGHT:.1f}"
        words.append(f"M{x * WIDTH:.1f} {height}" if broken else f"V{height}")
        words.append(f"H{min(until, x + longest) * WIDTH:.1f}")
        broken = until > x + longest
    return "".join(words)
