"""Which slots a forecast is made of, and how much of a long log it reads.

Nothing here is chosen by anybody: all of it follows from the log's rules, the slot and the
length of a day, so that a log can be checked for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

#: Past days that a forecast looks at where a zone's settings are silent; what the published
#: figures are measured with.
PAST_DAYS = 2
#: Log entries read for one forecast; of a longer stretch an even sample.
MOST_ENTRIES = 40_000


@dataclass(frozen=True, slots=True)
class ForecastSpan:
    """Slots whose bids a forecast is made of."""

    #: First slot of today, and of the forecast after it.
    day_start: int
    slot: int
    last_slot: int
    #: First slots of past days, the latest first.
    past_starts: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.last_slot - self.day_start + 1

    @property
    def first(self) -> int:
        return min((self.day_start, *self.past_starts))

    @property
    def decided_from(self) -> int:
        """Slot under way when the first of its bids was decided.

        A bid that arrives later than in the next slot, as a seat's does, was decided with those of
        its time, and is left out with them.
        """
        return self.first - 1


def choose_span(
    *, day_slots: int, began: int, slot: int, last_slot: int, past_days: int
) -> ForecastSpan:
    """Give what a forecast from ``slot`` to ``last_slot`` can be made of.

    Parameters
    ----------
    day_slots : int
        Slots of a day.
    began : int
        The first slot in which a job may run that the log knows of.
    slot, last_slot : int
    past_days : int
        Days looked at, as far as the log goes back.

    Examples
    --------
    Past days end where their sequel, as long as the forecast, is known: of a day of 10 slots
    and a horizon of 4, at slot 30, today is slots 20 to 29 and yesterday is 10 to 19 with 20
    to 23.

    >>> choose_span(day_slots=10, began=1, slot=30, last_slot=33, past_days=2).past_starts
    (10,)
    """
    day_start = max(slot - day_slots, began)
    nearest = max(1, ceil((last_slot + 1 - slot) / day_slots))
    # Not those that lie before the log, however many days it is told to look at.
    furthest = min(nearest + past_days, (slot - began) // day_slots)
    starts = [slot - day_slots - back * day_slots for back in range(nearest, furthest)]
    return ForecastSpan(
        day_start=day_start,
        slot=slot,
        last_slot=last_slot,
        past_starts=tuple(starts),
    )


def find_sampling(*, first: int, last: int) -> int:
    """Give how many log entries each one read stands for, between two positions."""
    return max(1, ceil((last - first + 1) / MOST_ENTRIES))
