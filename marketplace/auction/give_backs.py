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
    """Work of a job that its owner gives back, by the cells it was to be done in, and its price."""

    #: Work units of cells that had not begun; these go back on sale.
    coming: Fraction
    #: Without a vendor's price.
    paid_micros: int
    #: The operational cost in that.
    asks_micros: int = 0
    #: Work units of the cell that runs, or of cells that the owner let pass: nobody can buy them.
    begun: Fraction = Fraction(0)
    #: Work units of cells that the market took away; their price goes back whole.
    taken: Fraction = Fraction(0)

    @property
    def begun_asks_micros(self) -> int:
        """The operational cost of the work whose cells nobody can buy."""
        return self._find_share(self.asks_micros, self.begun)

    @property
    def most_micros(self) -> int:
        """What was paid for the cells that had not begun, and the operational cost of the others.

        No more goes back of it, whatever the work is worth.
        """
        whole = self.paid_micros * self.coming + self.asks_micros * self.begun
        return math.floor(whole / (self.coming + self.begun + self.taken))

    def compute_kept(self, refund_micros: int | None) -> int:
        """Compute what stays of the price.

        ``refund_micros`` is what goes back as the log says it; ``None`` where no cell was left to
        go back on sale.
        """
        back = refund_micros
        if back is None:
            back = compute_refund(paid=self.most_micros, price=None)
        return self.paid_micros - back - self._find_share(self.paid_micros, self.taken)

    def _find_share(self, amount_micros: int, units: Fraction) -> int:
        return math.floor(amount_micros * units / (self.coming + self.begun + self.taken))


def split_undone(
    *,
    bid: Bid,
    units: Fraction,
    paid_micros: int,
    asks_micros: int,
    is_own_delay: bool,
    at: datetime,
) -> UndoneWork:
    """Tell in which cells the work was to be done that is left of a job as its owner ends it.

    What the cells that it holds have no room for was to be done in the cell that runs, or in cells
    that its owner let pass (``is_own_delay``); the rest in cells that the market took away.
    """
    now = slot_at(bid.zone, at)
    coming = running = Fraction(0)
    held = Reservation.objects.filter(bid=bid, released_at=None, slot__gte=now)
    for slot, samples in held.values_list("slot", "samples"):
        if slot == now:
            running += Fraction(samples)
        else:
            coming += Fraction(samples)
    coming = min(coming, units)
    begun = units - coming if is_own_delay else min(running, units - coming)
    return UndoneWork(coming, paid_micros, asks_micros, begun, taken=units - coming - begun)


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
            compute_demand=float(undone.coming + undone.begun),
            memory_demand=bid.memory_demand_gb,
            bid=0.0,
            rates=dict(sorted(bid.rates.items())),
            verified_only=bid.verified_only,
        ),
        paid=undone.most_micros,
        begun=float(undone.begun),
        begun_asks=undone.begun_asks_micros,
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
