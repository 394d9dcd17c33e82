"""Moments and spans as pages say them."""

import re
from datetime import datetime

from django.utils import timezone

#: A moment as sentences of the market name it (``clock.format_moment``), or in ISO form.
MOMENT = re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?: UTC|Z|\+00:00)(?![\w:])")


def format_clock(at: datetime, now: datetime, *, seconds: bool = False) -> str:
    """Today ``17:30``, this week ``Thu 12:31``, else ``20 Nov 2026``, in the visitor's zone."""
    local, today = timezone.localtime(at), timezone.localtime(now)
    time = local.strftime("%H:%M:%S" if seconds else "%H:%M")
    if local.date() == today.date():
        return time
    if abs((at - now).total_seconds()) < 6 * 86_400:
        return f"{local:%a} {time}"
    return f"{local.day} {local:%b %Y}"


def format_duration(seconds: float) -> str:
    """At most two units: ``0.31 s``, ``44 min``, ``2 h 10 min``."""
    if seconds < 1:
        return f"{max(0.0, seconds):.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return _format_two_units(whole, 60, "min", "s")
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 1440:
        return _format_two_units(minutes, 60, "h", "min")
    return _format_two_units(round(minutes / 60), 24, "d", "h")


def _format_two_units(value: int, base: int, large: str, small: str) -> str:
    whole, rest = divmod(value, base)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def localize_moments(text: str, now: datetime) -> str:
    """The same without markup, for text that a script puts in place."""
    return MOMENT.sub(lambda found: format_clock(parse_moment(found[0]), now, seconds=True), text)


def parse_moment(words: str) -> datetime:
    """The moment that ``MOMENT`` found."""
    return datetime.fromisoformat(words.replace(" UTC", "+00:00"))
