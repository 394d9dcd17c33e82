"""Zones whose logs began under what sold before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from marketplace.auction.book import engine_cache as books
from marketplace.auction.lane import decide
from marketplace.auction.lane.decisions import TakenBid, record_decisions
from marketplace.auction.lane.lane import Lane
from marketplace.auction.lane.receive import build_arrival
from marketplace.auction.locks import lock_pending_bids
from marketplace.fleet.models import Zone
from scheduler.auction import ZoneRules
from scheduler.experiments.auction.max_form.policies import max_form_rules


@contextmanager
def selling_under_residual() -> Iterator[None]:
    """Zones begin and sell under ``residual``, as before; then every process restarts.

    Their logs are of version 1: a bid is decided at once, without a receipt.
    """
    now = books.replace_zone_settings

    def under_residual(rules: ZoneRules, *, zone: Zone) -> ZoneRules:
        changed = now(rules, zone=zone)
        return replace(changed, policy="residual", retired=max_form_rules(), version=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(books, "replace_zone_settings", under_residual)
        patch.setattr(decide, "receive_bids", _decide_at_once)
        yield
    forget_engines()


def _decide_at_once(lane: Lane, *, limit: int, only: str | None = None) -> int:
    waiting = lock_pending_bids(zone_id=lane.zone.pk, limit=limit, only=only)
    bids = [
        bid._replace(received_slot=lane.slot, salt=books.get_commitment_salt()) for bid in waiting
    ]
    record_decisions(
        lane, [TakenBid(bid, lane.apply(build_arrival(lane, bid)), None) for bid in bids]
    )
    return 0


def forget_engines() -> None:
    """Every process restarts: the engines it had are gone."""
    books._lane_books.clear()
    books._read_books.clear()
