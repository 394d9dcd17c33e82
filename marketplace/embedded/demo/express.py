"""The demo's express lane: open while the site stays up, with a seat paid for by the house."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marketplace.embedded.house import House

#: The longest SLO on sale; the bundled rows are tuned within a minute.
LONGEST_SLO_S = 180
#: Dollars a slot, many times what a seat costs there.
SEAT_LIMIT = "0.05"


def open_express_lane(
    running: House, seeded: dict[str, Any], *, say: Callable[[str], None]
) -> None:
    """Sell prompt tuning within an SLO from now on; safe to repeat."""
    words = running.manage(
        *("express_lane", seeded["zone"], "--buyer", seeded["house"]),
        *("--least-seats", "1", "--most-seats", "3"),
        *("--longest-slo-s", str(LONGEST_SLO_S), "--seat-limit", SEAT_LIMIT),
    )
    say(words.strip())
