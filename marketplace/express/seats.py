"""Seats of the lane: cells bought from the auction, and when each is free.

A seat is one bid of the lane for one job's place in consecutive slots. The bid takes the road of
every other: it is received, decided at the posted price and logged. So a cell is sold either to the
lane or to somebody else.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from marketplace.auction.lane import wakeups
from marketplace.auction.models import Bid, Reservation
from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus, Seat
from marketplace.fleet import selectors as fleet
from marketplace.fleet.memory import memory_demand
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_ends_at, slot_starts_at
from marketplace.jobs.models import Job
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.models import Hold
from scheduler.types import Cell
from workers.protocol.messages import AdapterKind, AdapterSpec


@dataclass(frozen=True, slots=True)
class HeldSeat:
    """A stretch of one chain's cells: consecutive slots on one node."""

    #: Of the chain's first bid; bids that follow it on go by it.
    root: str
    is_burst: bool
    #: From the present slot, or the first one, on; each with the bid that holds it.
    cells: tuple[tuple[str, Cell], ...]
    #: When no job sits on it any more.
    free_at: datetime

    @property
    def name(self) -> str:
        """Different for each seat of one moment."""
        return f"{self.root}@{self.first_slot}"

    @property
    def first_slot(self) -> int:
        return self.cells[0][1].slot

    @property
    def last_slot(self) -> int:
        return self.cells[-1][1].slot


def load_seats(lane: ExpressLane, *, now: datetime) -> list[HeldSeat]:
    """The lane's seats with cells now or to come, by chain and slot."""
    zone = lane.zone
    slot = slot_at(zone, now)
    bids = {seat.pk: seat for seat in Seat.objects.filter(lane=lane, last_slot__gte=slot)}
    held = Reservation.objects.filter(
        bid_id__in=bids, released_at__isnull=True, slot__gte=slot
    ).values_list("bid_id", "slot", "node_id")
    chains: defaultdict[str, list[tuple[str, Cell]]] = defaultdict(list)
    for bid_id, at, node_id in held:
        chains[bids[bid_id].root].append((bid_id, Cell(slot=at, node=node_id)))
    sitting = _list_sitting(lane, chains)
    seats: list[HeldSeat] = []
    for root, cells in sorted(chains.items()):
        for run in _split_runs(sorted(cells, key=lambda one: one[1].slot)):
            places = {(cell.slot, cell.node) for _, cell in run}
            until = [
                slot_ends_at(zone, last)
                for chain, taken, last in sitting
                if chain == root and places & taken
            ]
            begins_at = slot_starts_at(zone, run[0][1].slot)
            free_at = max(now, begins_at, *until)
            seats.append(HeldSeat(root, bids[run[0][0]].is_burst, run, free_at))
    return seats


def _split_runs(
    cells: Sequence[tuple[str, Cell]],
) -> list[tuple[tuple[str, Cell], ...]]:
    """Divide a chain's cells where a slot is missing or the node changes."""
    runs: list[list[tuple[str, Cell]]] = []
    for one in cells:
        last = runs[-1][-1][1] if runs else None
        if last is None or one[1] != Cell(slot=last.slot + 1, node=last.node):
            runs.append([])
        runs[-1].append(one)
    return [tuple(run) for run in runs]


def _list_sitting(
    lane: ExpressLane, roots: Iterable[str]
) -> list[tuple[str, set[tuple[int, str]], int]]:
    """Jobs that sit on chains: the chain, the cells taken, and their last slot."""
    root_of = dict(
        ExpressRequest.objects.filter(
            seat_bid_id__in=list(roots), status=RequestStatus.ADMITTED
        ).values_list("bid_id", "seat_bid_id")
    )
    active = Job.objects.filter(bid_id__in=root_of, status__in=Job.ACTIVE)
    return [
        (root_of[bid_id], {(slot, node) for slot, node in cells}, cells[-1][0])
        for bid_id, cells in active.values_list("bid_id", "cells")
        if cells
    ]


def buy_seats(
    lane: ExpressLane,
    *,
    first_slot: int,
    last_slot: int,
    count: int,
    now: datetime,
    is_burst: bool = False,
    root: str | None = None,
) -> list[str]:
    """Bid for seats in these slots; the bids' ids. The zone's lane decides them like any other.

    ``root`` names the chain that the cells go on; without it each is the first of its own. Where
    the wallet of the lane is short, fewer are bid for.
    """
    slots = last_slot - first_slot + 1
    rates = find_seat_rates(lane.zone)
    if slots < 1 or not rates:
        return []
    bids = [
        Bid(
            zone=lane.zone,
            organisation_id=lane.organisation_id,
            placed_by=None,
            dataset=None,
            name="express seat",
            price_micros=lane.seat_limit_micros * slots,
            deadline_at=slot_ends_at(lane.zone, last_slot),
            not_before_slot=first_slot,
            request_hash=hashlib.sha256(f"{lane.pk}|{first_slot}|{last_slot}".encode()).hexdigest(),
            created_at=now,
            adapter={},
            training={},
            samples=0,
            compute_demand=min(rates.values()) * slots,
            memory_demand_gb=find_seat_memory_gb(lane.zone),
            rates=rates,
        )
        for _ in range(count)
    ]
    with transaction.atomic():
        holds = place_holds(
            wanted=[
                HoldRequest(bid.organisation_id, bid.price_micros, bid.hold_reference)
                for bid in bids
            ],
            now=now,
        )
        placed = [bid for bid, hold in zip(bids, holds, strict=True) if isinstance(hold, Hold)]
        Bid.objects.bulk_create(placed)
        Seat.objects.bulk_create(
            Seat(
                bid_id=bid.pk,
                lane=lane,
                root=root or bid.pk,
                is_burst=is_burst,
                first_slot=first_slot,
                last_slot=last_slot,
                created_at=now,
            )
            for bid in placed
        )
        if placed:
            wakeups.wake_lane_on_commit(zone_id=lane.zone_id)
    return [bid.pk for bid in placed]


def find_seat_rates(zone: Zone) -> dict[str, float]:
    """What one seat is in a slot, by GPU type: the work units promised to one job."""
    rates = fleet.load_rates(zone)
    return {gpu_type: rate for gpu_type, rate in rates.items() if rate > 0}


def find_seat_memory_gb(zone: Zone) -> float:
    """Memory of a seat: that of the longest soft prompt it takes."""
    adapter = AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=SEAT_VIRTUAL_TOKENS)
    return memory_demand(zone=zone, adapter=adapter)


#: Virtual tokens that a seat has memory for.
SEAT_VIRTUAL_TOKENS = 100
