"""What an owner gets back that ends its job, by the value of what is left of it.

The engine finds that value (``scheduler.auction.engine.give_backs``) as the cells go back on sale,
and the log says it, so that anybody can check it. Nothing here writes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from django.db.models import Exists, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Greatest

from marketplace.auction.models import Bid, MarketHead, Reservation
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import last_slot_until, load_rates
from marketplace.jobs.models import Job
from marketplace.jobs.selectors import list_unsettled_jobs
from scheduler.auction.engine.give_backs import RETURNED_PERCENT, compute_refund
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
    #: Work units of cells that the market took away; their price goes back whole.
    taken: Fraction = Fraction(0)
    #: Work units of cells that began before the market put them on sale; of what was paid for
    #: them, as much goes back as of a job that costs no less by now.
    passed: Fraction = Fraction(0)
    #: The rent in that of the slot after the one in which its owner ended it; it stays.
    passed_rent_micros: int = 0

    @property
    def price_micros(self) -> int:
        """What was paid for the cells to come, and for those that nobody can buy."""
        return self._find_share(self.paid_micros, self.coming + self.begun)

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
        return math.floor(whole / self._units)

    @property
    def passed_refund_micros(self) -> int:
        """What goes back for the cells that passed.

        The next slot's cell was given back too late for others, however late the market was. To
        sell later ones it had a whole slot's time.
        """
        paid = self._find_share(self.paid_micros, self.passed) - self.passed_rent_micros
        return compute_refund(paid=paid, price=None)

    def keep_promise(self, promised_micros: int) -> UndoneWork:
        """Give it with so much less rent kept of cells that passed that what was shown goes back.

        Of what was shown, a cell may have begun since.
        """
        missing = promised_micros - compute_refund(paid=self.price_micros, price=None)
        least = -(-missing * 100 // RETURNED_PERCENT)
        most = self._find_share(self.paid_micros, self.passed) - least
        return replace(self, passed_rent_micros=max(0, min(self.passed_rent_micros, most)))

    @property
    def _units(self) -> Fraction:
        return self.coming + self.begun + self.taken + self.passed

    def compute_kept(self, refund_micros: int | None) -> int:
        """Compute what stays of the price.

        ``refund_micros`` is what goes back as the log says it; ``None`` where no cell was left to
        go back on sale.
        """
        back = refund_micros
        if back is None:
            back = compute_refund(paid=self.begun_asks_micros, price=None)
        back += self.passed_refund_micros + self._find_share(self.paid_micros, self.taken)
        return self.paid_micros - back

    def compute_kept_if_won(self, refund_micros: int | None, *, won: UndoneWork) -> int:
        """Compute what stays if the cells that passed turn out to be the market's own delay.

        ``won`` is the same work then. Work whose cells nobody can buy only because of that delay
        counts as taken by the market: its whole price comes back, in place of the operational cost
        of it that the log gave back. For the cells to come the log's word stays.
        """
        kept = self.compute_kept(refund_micros)
        if refund_micros is not None:
            asks = self.begun_asks_micros - won.begun_asks_micros
            refund_micros -= compute_refund(paid=asks, price=None)
        taken = self.taken + self.begun - won.begun
        then = replace(self, begun=won.begun, taken=taken)
        return max(0, min(kept, then.compute_kept(refund_micros)))

    def _find_share(self, amount_micros: int, units: Fraction) -> int:
        return math.floor(amount_micros * units / self._units)


def find_rent(bid: Bid, *, of_micros: int) -> int:
    """Find the rent, what cells cost above their operational cost, in a part of a bid's price."""
    parts = bid.parts or {}
    whole = (bid.payment_micros or 0) - math.ceil(parts.get("vendor", 0.0))
    rent = parts.get("compute", 0.0) + parts.get("memory", 0.0)
    return min(of_micros, math.floor(of_micros * rent / whole)) if whole else 0


def split_undone(
    *,
    bid: Bid,
    bought: Fraction,
    units: Fraction,
    paid_micros: int,
    asks_micros: int,
    is_own_delay: bool,
    slot: int,
    first_slot: int,
) -> UndoneWork:
    """Tell in which cells the work was to be done that is left of a job as its owner ends it.

    Of the work that was bought (``bought``), each cell is for as large a part as of the room that
    the job has had: the price pays for every cell, also for one that it does not fill. What is left
    beyond the part of the cells to come was to be done in the cell of the ``slot`` that ran as it
    ended, or in cells that its owner let pass (``is_own_delay``); the rest in cells that the market
    took away. Of the cells to come, those before ``first_slot`` passed before they went on sale.
    """
    room = running = later = free = following = Fraction(0)
    rows = Reservation.objects.filter(bid=bid, released_at=None)
    for of_cell, samples in rows.values_list("slot", "samples"):
        room += Fraction(samples)
        if of_cell == slot:
            running += Fraction(samples)
        elif of_cell > slot:
            later += Fraction(samples)
            free += Fraction(samples) if of_cell >= first_slot else 0
            following += Fraction(samples) if of_cell == slot + 1 < first_slot else 0
    part = bought * later / room if later else Fraction(0)
    left = min(units, part)
    begun = units - left if is_own_delay else min(running, units - left)
    left = min(later, units - begun)
    coming = left if free == later else min(left, part) * free / later
    passed = left - coming
    late = passed * following / (later - free) if passed else Fraction(0)
    undone = UndoneWork(
        coming,
        paid_micros,
        asks_micros,
        begun,
        taken=units - begun - left,
        passed=passed,
        passed_rent_micros=find_rent(bid, of_micros=math.floor(paid_micros * late / units))
        if late
        else 0,
    )
    return undone.keep_promise(bid.promised_micros)


def build_release(
    *,
    bid: Bid,
    rows: Sequence[Reservation],
    undone: UndoneWork | None,
    slot: int,
    first_slot: int,
    promised_micros: int = 0,
    paid_share: Fraction = Fraction(1),
) -> events.CellsReleased:
    """Build the entry by which a job's cells go back on sale.

    ``rows`` are those cells, all of slots that have not begun. The job ended in ``slot``.
    ``undone`` is ``None`` where its owner did not end it, or no part of its work can be sold again.
    The rest is priced by the rates of today, as a new bid would be. A type of GPU that is not on
    sale keeps the rate that the job was sold at. ``promised_micros`` is what its owner was told as
    it ended the job. ``paid_share`` is the part of the price that stays paid where nothing is given
    back: all of it of a job that goes on.
    """
    cells = tuple(Cell(row.slot, row.node_id) for row in rows)
    if undone is None or not undone.coming:
        return events.CellsReleased(task_id=bid.pk, cells=cells, paid_share=float(paid_share))
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
        slot=slot,
        # A cell that has begun since is a part of what was promised.
        promised=min(
            max(0, promised_micros - undone.passed_refund_micros),
            compute_refund(paid=undone.price_micros, price=None),
        ),
    )


def list_earlier_releases(zone: Zone, *, first_slot: int) -> list[events.CellsReleased]:
    """Build what a turn now would put on sale of jobs that ended, for a replica; it says no prices.

    One that ends now comes after these.
    """
    held = Reservation.objects.filter(
        bid_id__in=list_unreleased_jobs().filter(zone=zone).order_by().values("bid_id"),
        released_at=None,
        slot__gte=first_slot,
    )
    cells: defaultdict[str, list[Cell]] = defaultdict(list)
    for bid_id, slot, node_id in held.order_by("slot").values_list("bid_id", "slot", "node_id"):
        cells[bid_id].append(Cell(slot, node_id))
    return [events.CellsReleased(task_id=one, cells=tuple(of)) for one, of in cells.items()]


def list_held(*, bid: Bid, first_slot: int) -> list[Reservation]:
    """The cells that a job holds from a slot on."""
    held = Reservation.objects.filter(bid=bid, released_at=None, slot__gte=first_slot)
    return list(held.order_by("slot"))


def list_unreleased_jobs(*, after_slot: int = 0) -> QuerySet[Job]:
    """Ended jobs that hold cells after the slot that their zone's log knows, and after another."""
    slot = MarketHead.objects.filter(zone_id=OuterRef("zone_id")).values("slot")
    held = Reservation.objects.filter(
        bid_id=OuterRef("bid_id"),
        released_at=None,
        slot__gt=Greatest(Subquery(slot), Value(after_slot)),
    )
    return list_unsettled_jobs().filter(Exists(held))
