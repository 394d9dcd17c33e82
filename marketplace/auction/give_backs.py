"""What an owner gets back that ends its job, by the value of what is left of it.

The engine finds that value (``scheduler.auction.engine.give_backs``) as the cells go back on sale,
and the log says it, so that anybody can check it. Nothing here writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from marketplace.auction.book.engine_cache import read_book
from marketplace.auction.models import Bid, Reservation
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import last_slot_until, slot_at
from scheduler.auction.engine.give_backs import compute_refund
from scheduler.auction.log import events
from scheduler.auction.log.outcomes import ReleasedCells
from scheduler.types import Cell, Task


@dataclass(frozen=True, slots=True)
class UndoneWork:
    """Work of a job that its owner ended, and what was paid for it."""

    #: Work units.
    units: float
    #: Without a vendor's price.
    paid_micros: int
    #: The operational cost in that.
    asks_micros: int
    #: Its owner let cells pass; the market took none away.
    is_own_delay: bool = False


def build_release(
    *, bid: Bid, rows: Sequence[Reservation], undone: UndoneWork | None, first_slot: int
) -> events.CellsReleased:
    """Build the entry by which a job's cells go back on sale.

    ``rows`` are those cells, all of slots that have not begun; ``undone`` is ``None`` where the
    owner did not end the job.
    """
    cells = tuple(Cell(row.slot, row.node_id) for row in rows)
    if undone is None:
        return events.CellsReleased(task_id=bid.pk, cells=cells)
    return events.CellsReleased(
        task_id=bid.pk,
        cells=cells,
        rest=Task(
            id=bid.pk,
            arrival_slot=first_slot,
            deadline_slot=last_slot_until(bid.zone, bid.deadline_at),
            compute_demand=undone.units,
            memory_demand=bid.memory_demand_gb,
            bid=0.0,
            rates=dict(sorted(bid.rates.items())),
            verified_only=bid.verified_only,
        ),
        paid=undone.paid_micros,
    )


def quote_release(*, zone: Zone, event: events.CellsReleased, now: datetime) -> ReleasedCells:
    """What the log would say of cells that went back on sale now."""
    with read_book(zone=zone, now=now) as book:
        outcome = book.engine.replica().transition(event)
    assert isinstance(outcome, ReleasedCells)
    return outcome


def list_held(*, bid: Bid, first_slot: int) -> list[Reservation]:
    """The cells that a job holds from a slot on."""
    held = Reservation.objects.filter(bid=bid, released_at=None, slot__gte=first_slot)
    return list(held.order_by("slot"))


def compute_kept(
    *,
    bid: Bid,
    undone: UndoneWork,
    rows: Sequence[Reservation],
    refund_micros: int | None,
    at: datetime,
) -> int:
    """Compute what stays of the price of work that was not done.

    The cell that runs as the job ends cannot be sold again, nor can those that its owner let pass,
    so only the operational cost goes back of the work that was to be done in them. All that was
    paid goes back for cells that the market had taken away.

    Parameters
    ----------
    rows
        The cells that go back on sale.
    refund_micros
        What goes back for all of the work, as the log says it; ``None`` without such cells.
    at
        When the job ends.
    """
    paid = undone.paid_micros
    back = compute_refund(paid=paid, price=None) if refund_micros is None else refund_micros
    running = Reservation.objects.filter(bid=bid, released_at=None, slot=slot_at(bid.zone, at))
    room = sum(running.values_list("samples", flat=True))
    if undone.is_own_delay:
        room = undone.units
    elsewhere = max(0.0, undone.units - sum(row.samples for row in rows))
    begun = Fraction(min(room, elsewhere)) / Fraction(undone.units)
    taken = Fraction(max(0.0, elsewhere - room)) / Fraction(undone.units)
    rent = max(0, back - compute_refund(paid=undone.asks_micros, price=None))
    return paid - back + math.floor(rent * begun) - math.floor((paid - back) * taken)
