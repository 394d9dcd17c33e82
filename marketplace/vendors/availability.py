"""When a vendor works: days of the week and hours of the day, in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS_A_WEEK = 7
HOURS_A_DAY = 24


@dataclass(frozen=True, slots=True)
class Availability:
    """Weekdays, Monday is 0, and hours of each of them; no weekday means all."""

    days: tuple[int, ...] = ()
    from_hour: int = 0
    to_hour: int = HOURS_A_DAY

    @property
    def is_always(self) -> bool:
        every_day = not self.days or len(set(self.days)) == DAYS_A_WEEK
        return every_day and (self.from_hour, self.to_hour) == (0, HOURS_A_DAY)


def compute_elapsed_s(availability: Availability, work_s: int, *, now: datetime) -> int:
    """Compute the seconds from now until work of a given length is done within working hours.

    Raises
    ------
    ValueError
        The hours are none.
    """
    if availability.is_always:
        return work_s
    if availability.from_hour >= availability.to_hour:
        raise ValueError("a vendor works at least an hour of a day")
    days = set(availability.days or range(DAYS_A_WEEK))
    a_day_s = 3600 * (availability.to_hour - availability.from_hour)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    left_s = float(work_s)
    # Whole weeks at once: what is left is less than a week's work, or exactly one.
    weeks = max(0, -(-work_s // (a_day_s * len(days))) - 2)
    left_s -= weeks * a_day_s * len(days)
    midnight += timedelta(weeks=weeks)
    begin = now + timedelta(weeks=weeks)
    while True:
        opens = midnight + timedelta(hours=availability.from_hour)
        closes = midnight + timedelta(hours=availability.to_hour)
        opens = max(opens, begin)
        if midnight.weekday() in days and opens < closes:
            here_s = (closes - opens).total_seconds()
            if here_s >= left_s:
                done_at = opens + timedelta(seconds=left_s)
                return -int(-(done_at - now).total_seconds() // 1)
            left_s -= here_s
        midnight += timedelta(days=1)
