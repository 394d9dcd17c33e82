"""Seats of the lane: cells bought from the auction, and when each is free.

A seat is one bid of the lane for one job's place in consecutive slots. The bid takes the road of
every other: it is received, decided at the posted price and logged. So a cell is sold either to the
lane or to somebody else.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from marketplace.auction.lane import wakeups
from marketplace.auction.models import Bid, BidStatus
from marketplace.express.models import ExpressLane, ExpressRequest, Seat
from marketplace.express.queries import REQUEST_FIELDS, JobRow, fetch_lane_rows
from marketplace.fleet import selectors as fleet
from marketplace.fleet.memory import compute_memory_demand
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import slot_at, slot_ends_at, slot_starts_at
from marketplace.payments.holds import HoldRequest, place_holds
from marketplace.payments.models import Hold
from scheduler.types import Cell
from workers.protocol.job_spec import AdapterKind, AdapterSpec

#: A seat whose last job ended before this has been without work for long enough to be given up.
LATELY = timedelta(minutes=1)
#: How long a burst that the auction refused is not bid for again in the same slot.
BURST_RETRY = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class SeatedJob:
    """A certified job that has cells of a seat and has not ended."""

    bid_id: str
    job_id: str
    organisation_id: str
    #: In slot order, those past included.
    cells: tuple[Cell, ...]
    request: ExpressRequest
    #: When it began; a job without it waits for its first cell.
    started_at: datetime | None
    #: Whether it has further seats of its node.
    is_gang: bool = False

    @property
    def run_s(self) -> float:
        """Seconds that it runs at most, as it was certified."""
        return float(self.request.answer["end_s"]) - float(self.request.answer["start_s"])

    @property
    def due_at(self) -> datetime:
        return self.request.created_at + timedelta(seconds=self.request.answer["slo_s"])

    def is_waiting(self, slot: int) -> bool:
        """Whether its cells may still change."""
        return self.started_at is None and self.cells[0].slot > slot


@dataclass(frozen=True, slots=True)
class HeldSeat:
    """A stretch of one chain's cells: consecutive slots on one node."""

    #: Of the chain's first bid; bids that follow it on go by it.
    root: str
    is_burst: bool
    #: From the present slot, or the first one, on; each with the bid that holds it.
    cells: tuple[tuple[str, Cell], ...]
    #: Since when it has been without work, if it has none.
    idle_since: datetime | None
    #: When the job at work there is predicted to end.
    free_at: datetime
    #: Jobs that wait for it, in the order of their cells.
    waiting: tuple[SeatedJob, ...] = ()
    #: The job at work there.
    running: SeatedJob | None = None

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


@dataclass(frozen=True, slots=True)
class LaneState:
    """The seats of a lane, and who has how many of them."""

    seats: list[HeldSeat]
    #: Seats that jobs of the lane sit on or wait for, by organisation.
    held: Counter[str]


def load_seats(lane: ExpressLane, *, now: datetime) -> list[HeldSeat]:
    """The lane's seats with cells now or to come, by chain and slot."""
    return load_lane_state(lane, now=now).seats


def load_lane_state(lane: ExpressLane, *, now: datetime) -> LaneState:
    """The lane's seats with cells now or to come, by chain and slot, and who holds them."""
    zone = lane.zone
    slot = slot_at(zone, now)
    rows = fetch_lane_rows(zone_id=zone.pk, slot=slot, lately=now - LATELY)
    bids = {seat.bid_id: seat for seat in rows.seats}
    chains: defaultdict[str, list[tuple[str, Cell]]] = defaultdict(list)
    for bid_id, at, node_id in rows.cells:
        chains[bids[bid_id].root].append((bid_id, Cell(slot=at, node=node_id)))
    seated, ended, held = _divide_jobs(rows.jobs)
    seats: list[HeldSeat] = []
    for root, cells in sorted(chains.items()):
        for run in _split_runs(sorted(cells, key=lambda one: one[1].slot)):
            places = {cell for _, cell in run}
            on = [job for job in seated[root] if not places.isdisjoint(job.cells)]
            first = bids[run[0][0]]
            begins_at = slot_starts_at(zone, run[0][1].slot)
            waiting = tuple(job for job in on if job.is_waiting(slot))
            running = next((job for job in on if not job.is_waiting(slot)), None)
            since = slot_starts_at(zone, first.first_slot)
            since = max(since, first.created_at, ended.get(root, since))
            seats.append(
                HeldSeat(
                    root,
                    first.is_burst,
                    run,
                    idle_since=None if on or begins_at > now else since,
                    free_at=_predict_free(zone, running, begins_at, now),
                    waiting=waiting,
                    running=running,
                )
            )
    return LaneState(seats, held)


def _predict_free(
    zone: Zone, running: SeatedJob | None, begins_at: datetime, now: datetime
) -> datetime:
    """When a seat's job is predicted to end; one that outlives its prediction has all its cells."""
    if running is None:
        return max(now, begins_at)
    if running.is_gang:
        return _find_gang_end(zone, running, now)
    began_at = running.started_at or slot_starts_at(zone, running.cells[0].slot)
    ends_at = began_at + timedelta(seconds=running.run_s)
    return ends_at if ends_at > now else max(now, slot_ends_at(zone, running.cells[-1].slot))


def _find_gang_end(zone: Zone, job: SeatedJob, now: datetime) -> datetime:
    """From when on its seats are promised to others, who begin a slot later: it has all its cells.

    A gang's cells are never cut for a job that follows it on one of its seats.
    """
    last = job.cells[-1].slot
    begins_at = slot_starts_at(zone, last)
    return begins_at if begins_at > now else max(now, slot_ends_at(zone, last))


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


def _divide_jobs(
    rows: Iterable[JobRow],
) -> tuple[defaultdict[str, list[SeatedJob]], dict[str, datetime], Counter[str]]:
    """By chain: jobs that have not ended, in the order of their cells, and when the last job ended
    of those that ended lately; and how many seats each organisation's jobs have."""
    seated: defaultdict[str, list[SeatedJob]] = defaultdict(list)
    latest: dict[str, datetime] = {}
    held: Counter[str] = Counter()
    for row in rows:
        request = ExpressRequest.from_db("default", REQUEST_FIELDS, row.request)
        roots = (request.seat_bid_id, *row.further_roots)
        if row.finished_at is None:
            held[row.organisation_id] += len(roots)
        is_gang = len(roots) > 1 or len(request.answer.get("seats", ())) > 1
        for root in roots:
            if row.finished_at is not None:
                latest[root] = max(row.finished_at, latest.get(root, row.finished_at))
            elif row.cells:
                names = (request.bid_id, row.job_id, row.organisation_id)
                seated[root].append(SeatedJob(*names, row.cells, request, row.started_at, is_gang))
    for on_chain in seated.values():
        on_chain.sort(key=lambda job: (job.cells[0].slot, job.bid_id))
    return seated, latest, held


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
    rates = find_seat_rates(lane.zone)
    if last_slot < first_slot or not rates:
        return []
    bids = _build_seat_bids(
        lane, first_slot=first_slot, last_slot=last_slot, count=count, rates=rates, now=now
    )
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


def was_burst_refused(lane: ExpressLane, *, first_slot: int, last_slot: int, now: datetime) -> bool:
    """Whether the auction just refused a seat for these slots, or for fewer of them.

    Trying again for each of a crowd's requests would keep the lane from answering them.
    """
    tried = Seat.objects.filter(
        lane=lane,
        is_burst=True,
        first_slot=first_slot,
        last_slot__lte=last_slot,
        created_at__gt=now - BURST_RETRY,
    )
    refused = Bid.objects.filter(pk__in=tried.values("pk"), status=BidStatus.REFUSED)
    return refused.exists()


def _build_seat_bids(
    lane: ExpressLane,
    *,
    first_slot: int,
    last_slot: int,
    count: int,
    rates: dict[str, float],
    now: datetime,
) -> list[Bid]:
    """Bids for one seat each, as the auction takes them; not stored."""
    slots = last_slot - first_slot + 1
    memory_gb = find_seat_memory_gb(lane.zone)
    return [
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
            samples=0,
            compute_demand=min(rates.values()) * slots,
            memory_demand_gb=memory_gb,
            rates=rates,
            verified_only=lane.verified_only,
        )
        for _ in range(count)
    ]


def find_seat_rates(zone: Zone) -> dict[str, float]:
    """What one seat is in a slot, by GPU type: the work units promised to one job."""
    rates = fleet.load_rates(zone)
    return {gpu_type: rate for gpu_type, rate in rates.items() if rate > 0}


def find_seat_memory_gb(zone: Zone) -> float:
    """Memory of a seat: that of the longest soft prompt it takes."""
    adapter = AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=SEAT_VIRTUAL_TOKENS)
    return compute_memory_demand(zone=zone, adapter=adapter)


#: Virtual tokens that a seat has memory for.
SEAT_VIRTUAL_TOKENS = 100
