"""What a token costs: the zone's asks, for the share of a training token's work that it takes."""

from __future__ import annotations

from statistics import median

from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import get_work_costs, list_online_nodes
from workers.protocol.work import PARTS

MILLION = 1_000_000


def find_rate(zone: Zone) -> int | None:
    """Micro-dollars for a million tokens, read or written; ``None``: no node is on sale.

    Half of the nodes ask less for their slots. A token of an answer goes forward through the
    model, and never back.
    """
    asks = [
        node.ask_micros / node.compute_capacity
        for node in list_online_nodes(zone)
        if node.compute_capacity > 0
    ]
    if not asks:
        return None
    forward = get_work_costs(zone).forward / PARTS
    return max(1, round(median(asks) * forward * MILLION))


def compute_price(*, tokens: int, rate_micros: int) -> int:
    """Compute the price of tokens in micro-dollars, rounded up."""
    return -(-tokens * rate_micros // MILLION)
