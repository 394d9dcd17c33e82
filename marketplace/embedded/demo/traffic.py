"""A little trade beside the demo's sales: small jobs of another customer."""

from __future__ import annotations

from itertools import count
from typing import Any

import httpx

from marketplace.embedded.demo.api_client import (
    DATASET,
    DemoFailed,
    api_client,
    try_to_buy,
    upload_dataset,
)
from marketplace.embedded.house import House

#: Seconds from one small bid to the next while the site stays up.
EVERY_S = 30.0
#: Small bids beside the first sale, so that near cells of the cheapest node are taken.
AT_FIRST = 4
ROWS = 24
#: Seconds to the deadlines, in turns.
DEADLINES_S = (90, 1200, 300, 600)


class Traffic:
    """Small bids of the other customer, one at each call."""

    def __init__(self, running: House, seeded: dict[str, Any]) -> None:
        self._running = running
        self._seeded = seeded
        self._numbers = count(1)
        lines = DATASET.read_bytes().splitlines(keepends=True)
        self._content = b"".join(lines[:ROWS])

    def place(self) -> bool:
        """Place one small bid; whether it was admitted. The market may refuse it or be away."""
        number = next(self._numbers)
        try:
            with api_client(self._running, self._seeded["neighbour_api_key"]) as market:
                zone = self._seeded["zone"]
                dataset = upload_dataset(market, zone, content=self._content)
                bid, _ = try_to_buy(
                    market,
                    {"zone": zone, "dataset_id": dataset["id"], "training": {"epochs": 1}},
                    name=f"triage-{number}",
                    within_s=DEADLINES_S[number % len(DEADLINES_S)],
                    say=lambda _: None,
                )
        except (DemoFailed, httpx.TransportError):
            return False
        return bid is not None
