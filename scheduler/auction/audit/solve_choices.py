"""What a solve leaves no one to choose: its settings, its slots and the days it looks at.

A market sees a bid before it is received. It could run the same solve with other settings, days or
slots until the prices come out just below that bid; each of these solves comes to the logged prices
when it is run again. So what a solve is made of must follow from the log: from its rules, its slot
and the length of a day, which the log shows once and which then stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from scheduler.auction.engine.engine import Engine
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.prices.forecast_span import PAST_DAYS, SLOTS_LATE, choose_span, find_sampling
from scheduler.auction.prices.solve import choose_seed, read_settings
from scheduler.types import Horizon


def find_timing_problem(inputs: Mapping[str, Any], *, taken_at: Horizon) -> str | None:
    """Say why prices may not come into force now, if anything.

    Verifiers ask it of logged solves, and a market's lane of a solve that waits.

    Parameters
    ----------
    inputs : mapping
        Of a ``PricesSolved`` event.
    taken_at : Horizon
        Slots on sale when the prices come into force.
    """
    # Bids that arrive in a slot begin in the next.
    slot = int(inputs["slot"])
    if slot - 1 > taken_at.first_slot:
        return f"prices were solved for slot {slot}, which was not the next"
    if taken_at.first_slot > slot - 1 + SLOTS_LATE:
        return f"prices for slot {slot} came {taken_at.first_slot - slot + 1} slots late"
    return None


class SolveChoices:
    """Holds the inputs of a log's solves against what they have to be."""

    def __init__(self) -> None:
        #: Slots of a day, once a solve has looked back a whole one.
        self._day_slots: int | None = None
        self._least_day_slots = 1

    @property
    def day_slots(self) -> int:
        """Slots of a day, as far as the log has shown."""
        return self._day_slots or self._least_day_slots

    def find_problem(
        self, inputs: Mapping[str, Any], *, seed: int, state: Engine, taken_at: Horizon
    ) -> str | None:
        """Say which input is not what follows from the log, if any.

        Parameters
        ----------
        inputs : mapping
            Of a ``PricesSolved`` event.
        seed : int
            Of the same.
        state : Engine
            As it was at the position that the inputs name.
        taken_at : Horizon
            Slots on sale when the prices came into force.
        """
        rules, slot = state.rules, int(inputs["slot"])
        if inputs["settings"] != asdict(read_settings(rules.settings)):
            return "the settings of the solve are not those of the rules"
        if slot - 1 < state.horizon.first_slot:
            return f"prices were solved for slot {slot}, which had begun"
        problem = find_timing_problem(inputs, taken_at=taken_at)
        if problem is not None:
            return problem
        if seed != choose_seed(state, slot=slot):
            return "the seed of the solve does not follow from the log"
        if int(inputs["last_slot"]) != slot - 1 + rules.horizon_slots - 1:
            return "the last slot of the solve is not the last on sale"
        first, last = int(inputs["first_position"]), int(inputs["last_position"])
        if int(inputs["every"]) != find_sampling(first=first, last=last):
            return "more or fewer of the bids were left out than of so long a log"
        return self._find_span_problem(inputs, rules, slot)

    def _find_span_problem(
        self, inputs: Mapping[str, Any], rules: ZoneRules, slot: int
    ) -> str | None:
        day_start, began = int(inputs["day_start"]), rules.first_slot + 1
        day_slots = slot - day_start
        if day_start == began:
            # A first day, or the end of it: a day is no shorter than that.
            known = self._day_slots
            if known is not None and day_slots > known:
                return f"a day has {known} slots, and the solve looked back {day_slots}"
            self._least_day_slots = max(self._least_day_slots, day_slots)
        elif day_start < began or day_slots < self._least_day_slots:
            return f"the solve looked back {day_slots} slots, which is no day"
        elif self._day_slots is None:
            self._day_slots = day_slots
        elif day_slots != self._day_slots:
            return f"a day has {self._day_slots} slots, and the solve looked back {day_slots}"
        span = choose_span(
            day_slots=max(day_slots, 1),
            began=began,
            slot=slot,
            last_slot=int(inputs["last_slot"]),
            past_days=int(rules.settings.get("past_days", PAST_DAYS)),
        )
        if list(inputs["past_starts"]) != list(span.past_starts):
            return "the past days of the solve are not those that it has to look at"
        return None
