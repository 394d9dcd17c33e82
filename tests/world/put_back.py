"""Bugs that were found and mended, put back: the world must find each of them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Greatest

from marketplace.auction.bidding.place import NewBid
from marketplace.auction.book import engine_cache
from marketplace.auction.lane import price_changes
from marketplace.auction.models import MarketHead
from marketplace.common import clock
from marketplace.common.durable import run as durable_run
from marketplace.common.models import DurableWork
from marketplace.jobs.models import Slice, SliceStatus
from marketplace.jobs.services import dispatch
from scheduler.auction import Engine


def let_a_solve_read_what_came_after_its_beat(patch: pytest.MonkeyPatch) -> None:
    """The solver takes the log as it is, which the lane may have lengthened; nobody checks."""

    def replicate(*, head: MarketHead) -> Engine:
        with engine_cache.read_book(zone=head.zone, now=clock.now()) as book:
            return book.engine.replica()

    patch.setattr(engine_cache, "replicate_at_beat", replicate)
    patch.setattr(price_changes, "find_timing_problem", lambda *_, **__: None)


def extend_leases_without_their_jobs(patch: pytest.MonkeyPatch) -> None:
    """Slices are updated all at once, while who plans a job again has it and waits for one."""

    def extend(zone: Any, slot: int, held_jobs: list[Slice]) -> None:
        staying = [
            held.pk
            for held in held_jobs
            if held.last_slot < slot and held.job.node_in(slot) == held.node_id
        ]
        if staying:
            Slice.objects.filter(pk__in=staying, status=SliceStatus.OPEN).update(
                last_slot=Greatest("last_slot", slot),
                lease_expires_at=Greatest(
                    "lease_expires_at", dispatch.compute_lease_expiry(zone, slot)
                ),
            )

    patch.setattr(dispatch, "_extend_leases", extend)


def store_what_came_after_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Whose lease ran out stores what it found all the same."""

    def lock(work: Any) -> DurableWork:
        row = DurableWork.objects.select_for_update().filter(pk=work.id).first()
        return row or DurableWork(id=work.id, kind=work.kind, key=work.key, due_at=work.begun_at)

    patch.setattr(durable_run, "lock_held_work", lock)


def lose_the_validation_file_of_a_card_bid(patch: pytest.MonkeyPatch) -> None:
    """The terms that wait for a card are written without it."""
    written = NewBid.write_terms
    patch.setattr(NewBid, "write_terms", lambda asked: written(asked) | {"validation": None})


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the race of solve and lane": let_a_solve_read_what_came_after_its_beat,
    "the deadlock of leases": extend_leases_without_their_jobs,
    "the push without a fence": store_what_came_after_the_lease,
    "the card bid without its validation file": lose_the_validation_file_of_a_card_bid,
}
