"""What an owner gets back that ends its job, by the value of what is left of it.

The engine finds that value (``scheduler.auction.engine.give_backs``) as the cells go back on sale,
and the log says it, so that anybody can check it. Nothing here writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from django.db.models import Exists, OuterRef, QuerySet, Subquery

from marketplace.auction.models import Bid, MarketHead, Reservation
from marketplace.fleet.selectors import last_slot_until, load_rates
from marketplace.jobs.models import Job
from marketplace.jobs.selectors import list_unsettled_jobs
from scheduler.auction.engine.give_backs import compute_refund
from scheduler.auction.log import events
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
    #: Work units of cells that the market took away, or let pass; their price goes back whole.
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


@dataclass(frozen=True, slots=True)
class HeldCells:
    """The cells that a job held as it ended, and which of them can be sold again."""

    #: The slot in which it ended; the cell there has begun.
    slot: int
    #: The first slot whose cells can be sold again.
    first_free_slot: int


def split_undone(
    *,
    bid: Bid,
    bought: Fraction,
    units: Fraction,
    paid_micros: int,
    asks_micros: int,
    is_own_delay: bool,
    held: HeldCells,
) -> UndoneWork:
    """Tell in which cells the work was to be done that is left of a job as its owner ends it.

    Of the work that was bought (``bought``), each cell is for as large a part as of the room that
    the job has had: the price pays for every cell, also for one that it does not fill. What is left
    beyond the coming cells' part was to be done in the cell that runs, or in cells that its owner
    let pass (``is_own_delay``); the rest in cells that the market took away.
    """
    room = running = later = coming = Fraction(0)
    rows = Reservation.objects.filter(bid=bid, released_at=None)
    for slot, samples in rows.values_list("slot", "samples"):
        room += Fraction(samples)
        if slot == held.slot:
            running += Fraction(samples)
        elif slot > held.slot:
            later += Fraction(samples)
            coming += Fraction(samples) if slot >= held.first_free_slot else 0
    left = min(units, bought * later / room) if later else Fraction(0)
    begun = units - left if is_own_delay else min(running, units - left)
    left = min(later, units - begun)
    sellable = left * coming / later if later else Fraction(0)
    return UndoneWork(sellable, paid_micros, asks_micros, begun, taken=units - begun - sellable)


def build_release(
    *,
    bid: Bid,
    rows: Sequence[Reservation],
    undone: UndoneWork | None,
    first_slot: int,
    promised_micros: int = 0,
) -> events.CellsReleased:
    """Build the entry by which a job's cells go back on sale.

    ``rows`` are those cells, all of slots that have not begun; ``undone`` is ``None`` where the
    owner did not end the job, or no part of its work can be sold again. The rest is priced by the
    rates of today, as a new bid would be. A type of GPU that is not on sale keeps the rate that the
    job was sold at. ``promised_micros`` is what its owner was told as it ended the job.
    """
    cells = tuple(Cell(row.slot, row.node_id) for row in rows)
    if undone is None or not undone.coming:
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
            rates=dict(sorted((bid.rates | load_rates(bid.zone)).items())),
            verified_only=bid.verified_only,
        ),
        paid=undone.most_micros,
        begun=float(undone.begun),
        begun_asks=undone.begun_asks_micros,
        promised=min(promised_micros, compute_refund(paid=undone.most_micros, price=None)),
    )


def list_held(*, bid: Bid, first_slot: int) -> list[Reservation]:
    """The cells that a job holds from a slot on."""
    held = Reservation.objects.filter(bid=bid, released_at=None, slot__gte=first_slot)
    return list(held.order_by("slot"))


def list_unreleased_jobs() -> QuerySet[Job]:
    """Jobs that ended with cells that have not begun by their zone's log, and are still held."""
    slot = MarketHead.objects.filter(zone_id=OuterRef("zone_id")).values("slot")
    held = Reservation.objects.filter(
        bid_id=OuterRef("bid_id"), released_at=None, slot__gt=Subquery(slot)
    )
    return list_unsettled_jobs().filter(Exists(held))
