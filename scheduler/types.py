"""Values every scheduling package shares.

Slots are absolute integers: slot ``t`` covers the seconds
``[t * slot_s, (t + 1) * slot_s)`` since the zone's epoch, so a rolling horizon
never renumbers anything. Windows are inclusive at both ends.

Amounts of money are floats in one unit that the caller chooses and keeps. The
live market passes micro-dollars (whole numbers, exact far below 2**53) and asks
the engine to round payments up to whole units; papers and examples pass dollars
and do not round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: ``Schedule.vendor`` when the data need no labour vendor.
NO_VENDOR = -1


class Refusal(StrEnum):
    """The closed list of reasons a task is refused."""

    #: No node has the memory for the task, whatever the price.
    MEMORY = "memory"
    #: Too few slots between the arrival (and vendor delay) and the deadline.
    WINDOW = "window"
    #: A plan would exist on an empty grid, but the cells are sold.
    CAPACITY = "capacity"
    #: A plan exists and its price is not below the bid.
    PRICE = "price"
    #: The task asks for verified nodes, and none of them can run it; others might.
    VERIFIED = "verified"


@dataclass(frozen=True, slots=True)
class Horizon:
    """The slots on sale: ``first_slot .. first_slot + slots - 1``."""

    first_slot: int
    slots: int

    @property
    def last_slot(self) -> int:
        return self.first_slot + self.slots - 1

    def __contains__(self, slot: int) -> bool:
        return self.first_slot <= slot <= self.last_slot


@dataclass(frozen=True, slots=True, order=True)
class Beat:
    """The n-th beat of a slot, counted from 0; with the first the slot begins."""

    slot: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node of a zone (k in the paper)."""

    id: str
    #: A task has one rate on all nodes of a GPU type.
    gpu_type: str
    #: C_kp, samples per slot; the live market counts work units instead of the paper's samples.
    compute_capacity: float
    #: C_km, GB, the base model's share included.
    memory_capacity: float
    #: Provider's ask for one whole slot of the node; a task pays its share
    #: ``ask * rate / compute_capacity`` (e_ikt) unless it states its own costs.
    ask: float = 0.0
    #: First slot the node may be sold in, inclusive.
    available_from: int | None = None
    #: Last slot the node may be sold in, inclusive.
    available_until: int | None = None
    #: Cells sold outside these slots stay with the tasks that hold them; no others are sold there.
    keeps_sold: bool = False
    #: An operator vouches for its provider: tasks may ask for such nodes only.
    is_verified: bool = False
    #: The house's own: its ask rises as a day begins and at no other time.
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class NodeRate:
    """What a sample on a node earns its provider; all amounts are per sample."""

    #: What the node asked when the rate was posted; it sells where the rate is no lower.
    ask: float
    #: A solve in the day may lower the rate no further.
    floor: float
    #: The rate by block of the day.
    by_block: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class VendorCapacity:
    """A vendor that lists itself in a zone, and how much it can do."""

    id: str
    #: Units of work that it does in one slot, all tasks together; 0: it takes no more.
    capacity: int


@dataclass(frozen=True, slots=True)
class LaborVendor:
    """A vendor's offer to clean one task's data (q_in, h_in)."""

    id: str
    price: float
    #: Slots of work before training may start.
    delay_slots: int
    #: Units of the vendor's capacity that the work takes in each of these slots; 0: it has no
    #: limit, and its work is not noted.
    load: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """The scheduler's frozen value made from a bid (i in the paper)."""

    id: str
    #: a_i, inclusive.
    arrival_slot: int
    #: d_i, inclusive.
    deadline_slot: int
    #: M_i, samples times epochs.
    compute_demand: float
    #: r_i, GB, the base model not included.
    memory_demand: float
    #: b_i, what the job is worth to its owner.
    bid: float
    #: s_ik by GPU type, samples per slot; a missing type cannot run the task.
    rates: Mapping[str, float]
    #: f_i: with offers, one of them must be chosen; empty means no cleaning.
    vendors: tuple[LaborVendor, ...] = ()
    #: e_ikt by node id, one amount per slot from ``arrival_slot`` on. ``None``
    #: takes the node's ask in proportion to the compute used.
    operational_costs: Mapping[str, tuple[float, ...]] | None = None
    #: Who bids, by any name that tells owners apart; empty: an owner of its own.
    owner: str = ""
    #: It runs on verified nodes and on no others.
    verified_only: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One slot on one node."""

    slot: int
    node: str


@dataclass(frozen=True, slots=True)
class PriceParts:
    """What a price is made of; the parts add up to the price."""

    vendor: float = 0.0
    #: Sum of e_ikt over the cells.
    operational: float = 0.0
    #: Compute duals times samples.
    compute: float = 0.0
    #: Memory duals times GB slots.
    memory: float = 0.0
    #: What rounding up to whole units added.
    rounding: float = 0.0
    #: The house's fee for the work.
    fee: float = 0.0
    #: What the payment by card costs at most, and the tax in the price at most.
    card: float = 0.0
    tax: float = 0.0

    @property
    def total(self) -> float:
        # In this order charges of nothing leave the other sums as they are to the last bit.
        cost = self.vendor + self.operational + self.compute + self.memory
        return cost + self.fee + self.rounding + self.card + self.tax


@dataclass(frozen=True, slots=True)
class Schedule:
    """A vendor and a set of cells, at most one node per slot, in slot order."""

    cells: tuple[Cell, ...]
    #: Index into ``Task.vendors`` or ``NO_VENDOR``.
    vendor: int = NO_VENDOR
    #: First slot after the vendor's work, where that takes of its capacity.
    ready_slot: int | None = None

    @property
    def start_slot(self) -> int:
        return self.cells[0].slot

    @property
    def finish_slot(self) -> int:
        return self.cells[-1].slot


@dataclass(frozen=True, slots=True)
class PricePoint:
    """One tread of the price-by-deadline curve."""

    #: First deadline at which this price holds.
    deadline_slot: int
    price: float
    finish_slot: int


@dataclass(frozen=True, slots=True)
class Quote:
    """The price function evaluated without admitting; it reserves nothing."""

    #: ``None`` when no schedule fits; ``refusal`` then says why.
    schedule: Schedule | None
    parts: PriceParts | None
    refusal: Refusal | None
    #: Treads by deadline, non-increasing in price; empty when nothing fits.
    curve: tuple[PricePoint, ...]
    #: Log position the quote holds for; the next decision may move it.
    position: int

    @property
    def price(self) -> float | None:
        return None if self.parts is None else self.parts.total


@dataclass(frozen=True, slots=True)
class BundleQuote:
    """What jobs cost that all win or all lose, evaluated without admitting them."""

    #: Of each job, in their order; empty when they do not all fit.
    schedules: tuple[Schedule, ...]
    #: What each costs beside the others; they add up to the price.
    parts: tuple[PriceParts, ...]
    refusal: Refusal | None
    #: By deadline, the price of all together; as in ``Quote``.
    curve: tuple[PricePoint, ...]
    #: As in ``Quote``.
    position: int

    @property
    def price(self) -> float | None:
        return math.fsum(parts.total for parts in self.parts) if self.parts else None


@dataclass(frozen=True, slots=True)
class Decision:
    """What the auction answered to one task."""

    task_id: str
    admitted: bool
    #: p_i, the critical payment; 0 when refused.
    payment: float
    #: Bid minus price of the best schedule (F in the paper); ``None`` without one.
    surplus: float | None
    schedule: Schedule | None
    parts: PriceParts | None
    refusal: Refusal | None = None
    #: The lowest bid that would have been refused at this price: a bid above
    #: it wins. ``None`` when no schedule exists at any price.
    winning_price: float | None = None
    #: Earliest later deadline slot at which this very bid would win.
    winning_deadline_slot: int | None = None
    #: The price at that deadline.
    winning_deadline_price: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    #: What the decision added to the compute and memory price of each cell of
    #: ``schedule``, beyond their growth with use; empty when prices did not move.
    raised: tuple[tuple[float, float], ...] = ()
