"""Whether what a log says of a solve is what the solve comes to again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduler.auction.audit.faults import LAST_DIGITS
from scheduler.auction.log.events import PricesSolved


def find_difference(logged: PricesSolved, found: PricesSolved) -> str | None:
    """Say which part of an event is not what the solve comes to; ``None`` where all is."""
    for name in ("compute_price", "memory_price", "sample_worth", "usual_rates"):
        if not _is_close(getattr(logged, name), getattr(found, name)):
            return f"solved again, the bids before lead to another {name}"
    if logged.first_slot != found.first_slot or logged.own_asks != found.own_asks:
        return "solved again, the prices are for other slots or nodes"
    if any(not _is_same(logged.inputs.get(name), value) for name, value in found.inputs.items()):
        return "solved again, the inputs are others"
    return None


def _is_same(logged: Any, found: Any) -> bool:
    """Whether what a solve says of itself agrees; sums of another machine may end otherwise."""
    if not isinstance(found, float):
        return bool(logged == found)
    # A whole number is written without its fraction.
    is_number = isinstance(logged, float | int) and not isinstance(logged, bool)
    return is_number and abs(logged - found) <= LAST_DIGITS * abs(found)


def _is_close(
    logged: Mapping[str, tuple[float, ...]], found: Mapping[str, tuple[float, ...]]
) -> bool:
    if logged.keys() != found.keys():
        return False
    if any(len(logged[name]) != len(found[name]) for name in logged):
        return False
    if not logged:
        return True
    left = np.concatenate([np.array(logged[name], np.float64) for name in logged])
    right = np.concatenate([np.array(found[name], np.float64) for name in logged])
    most = float(np.max(np.abs(right), initial=0.0))
    return bool(np.all(np.abs(left - right) <= LAST_DIGITS * most))
