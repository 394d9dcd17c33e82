"""What can happen to a zone, as frozen values; ``codec`` writes and reads them exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.auction.log.rules import ZoneRules
from scheduler.types import Beat, Cell, NodeRate, NodeSpec, Task, VendorCapacity


@dataclass(frozen=True, slots=True)
class BidsReceived:
    """Bids are in the log, sealed; they are decided in this order, with nothing in between.

    So a decision is made at the prices that were in force when its bid was received, less the cells
    that earlier bids have taken.
    """

    #: Id and ``chain.seal`` of each.
    bids: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ReceiptsVoided:
    """Bids that were received are not decided now; they may be received again."""

    task_ids: tuple[str, ...]
    #: Why, in one word.
    reason: str


@dataclass(frozen=True, slots=True)
class BidArrived:
    """A bid is to be decided."""

    task: Task
    #: Slot in which it is decided; it may use no earlier one.
    slot: int
    #: Secret text that the log's commitments to the bid and what reveals it are made with.
    salt: str = ""
    #: The bundle that it wins or loses with; empty: it is decided by itself.
    bundle: str = ""


@dataclass(frozen=True, slots=True)
class BidPriced:
    """A bid without an amount is told its price; nothing is reserved.

    Its owner answers with a bid just above that price, which follows as any other, or with none. So
    whoever runs the market cannot make a price of what the job is worth (docs/adr/0032).
    """

    #: Its bid is 0 and is not looked at.
    task: Task
    #: As in ``BidArrived``.
    slot: int
    #: The beat whose prices its owner saw: the price is of that beat, or of the one after it.
    beat: Beat


@dataclass(frozen=True, slots=True)
class BundleArrived:
    """Bids that all win or all lose are to be decided.

    The outcome says which. The bids follow at once, an entry each, in this order and unchanged.
    """

    bundle_id: str
    #: Of one deadline and slot; each names the bundle.
    arrivals: tuple[BidArrived, ...]
    #: As in ``BidArrived``, for what the outcome reveals of the sum of the bids.
    salt: str = ""


@dataclass(frozen=True, slots=True)
class SlotAdvanced:
    """A beat has come: ``slot`` is now the first one on sale."""

    slot: int
    #: Beats of the slot before this one.
    part: int = 0


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node goes on sale; an id seen before starts again without history."""

    node: NodeSpec


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node's ask, capacity or availability is now as given."""

    node: NodeSpec


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node is gone from ``from_slot`` on; what was reserved there is dropped."""

    node_id: str
    from_slot: int


@dataclass(frozen=True, slots=True)
class VendorChanged:
    """A vendor's capacity in every slot is now as given; the work it has been given stays."""

    vendor: VendorCapacity


@dataclass(frozen=True, slots=True)
class PreparationEnded:
    """A vendor has done a job's work, or does it no longer: from ``slot`` on it is free."""

    task_id: str
    slot: int


@dataclass(frozen=True, slots=True)
class CellsReleased:
    """A job needs these cells no longer: they go back on sale."""

    task_id: str
    cells: tuple[Cell, ...]
    #: Most of the job's work was never done, so that most of its price went back.
    refunded: bool = False
    #: Its owner ended the job: the work that is left, as a task that could be bought from the next
    #: slot on, without a bid. ``None``: nothing goes back for the cells by their value.
    rest: Task | None = None
    #: What was paid for that work, without a vendor's price, and for the part of it in ``begun``
    #: only the operational cost; whole units of money.
    paid: int = 0
    #: The part of that work that was to be done in a cell that has begun, in samples, and its
    #: operational cost in ``paid``.
    begun: float = 0.0
    begun_asks: int = 0
    #: The slot in which its owner gave it back; ``None``: the one before ``rest`` could begin.
    slot: int | None = None
    #: What its owner was told as it ended the job, a moment before; no less goes back, also where a
    #: cell has begun since.
    promised: int = 0
    #: Without ``rest``: the part of the job's price that stays paid though it needs these cells no
    #: longer. So much of what it pays for cells that others had given back stays paid, too.
    paid_share: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskReplanned:
    """Find an admitted job a new plan at no cost to its owner.

    ``task`` carries the work that is left; what it still holds is released
    first.
    """

    task: Task
    slot: int
    #: As in ``BidArrived``.
    salt: str = ""
    #: The plan is on this node alone if the rest of the job fits there in time.
    preferred_node: str | None = None
    #: The plan uses these nodes only if no others can do all that is left.
    avoided_nodes: tuple[str, ...] = ()
    #: Of the plans in time whose price is at most so much above the cheapest, as a share of
    #: it, the one that ends first; ``None``: the cheapest.
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class PlanMove:
    """New cells of one job, with what its plan has to do: the work that is left, and by when."""

    task_id: str
    #: The last slot that the promise to its owner allows.
    deadline_slot: int
    #: M_i of what is left, samples.
    compute_demand: float
    #: r_i, GB.
    memory_demand: float
    #: s_ik by GPU type.
    rates: Mapping[str, float]
    #: In slot order.
    cells: tuple[Cell, ...]
    #: As in ``Task``.
    verified_only: bool = False


@dataclass(frozen=True, slots=True)
class PlansMoved:
    """These jobs go to these cells, all or none, at no cost and without moving a price.

    Who found the plans does not matter: the engine takes them only if every job does all of its
    work by its deadline, in cells that have room once all moved jobs have left their old ones.
    """

    moves: tuple[PlanMove, ...]
    #: Cells before this slot stay as they are.
    slot: int
    #: Jobs that no plan in time was found for: they leave their cells too, and are planned again
    #: by themselves.
    given_up: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PricesSolved:
    """A policy solved for new prices off the decision path."""

    #: First slot of the price rows below.
    first_slot: int
    #: New compute price of each node, one amount per slot.
    compute_price: Mapping[str, tuple[float, ...]]
    #: New memory price of each node, one amount per slot.
    memory_price: Mapping[str, tuple[float, ...]]
    #: Seed of every random choice made on the way.
    seed: int = 0
    #: What the solver was given, enough to run it again.
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Rates that tasks usually have, by GPU type: ties between nodes are broken so
    #: that no odd remainder is left.
    usual_rates: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict[str, tuple[float, ...]]
    )
    #: Some type's nodes ask different amounts: the price of a cell's sample and its ask
    #: are added before they are multiplied by a task's rate, so that such nodes tie.
    own_asks: bool = False
    #: What a sample costs by GPU type where every node asks its floor, one amount per slot:
    #: posted rates are lowered to it. Empty where asks are paid.
    sample_worth: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict[str, tuple[float, ...]]
    )


@dataclass(frozen=True, slots=True)
class RatesPosted:
    """What a sample earns providers from here on; rates posted before are gone.

    A node that is not named sells nothing.
    """

    #: First slot of the first block.
    first_slot: int
    #: Slots of a block, and of the day after which blocks begin again.
    block_slots: int
    day_slots: int
    #: By node.
    rates: Mapping[str, NodeRate]
    #: What the rates were made from, enough to find them again.
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """The zone goes by these rules from the day after the next on.

    So nobody sees first what seeds would make of them. On a log's first day they hold at once,
    until the next is promised, and so does what cards and tax cost on any day. What concerns cells
    must be as before. Prices stay, with one exception: under a policy that prices only what is
    sold, empty cells cost nothing again.
    """

    rules: ZoneRules


@dataclass(frozen=True, slots=True)
class DayPromised:
    """The secret of the coming day is chosen: this is its hash."""

    day: int
    #: The name under which the market signs heads of this log.
    zone: str
    #: SHA-256 of the secret, in hex.
    commitment: str
    #: Public key of the market, in hex, so that no other can have the name's promise signed.
    market_key: str = ""
    #: Public key of the witness that is asked to sign this entry, in hex; empty: of none. Named
    #: here, as a key that is made later could be made until the day's value suits.
    witness_key: str = ""


@dataclass(frozen=True, slots=True)
class DayOpened:
    """A day's value follows from this secret and, if there is one, a witness's signature.

    Seeds of solves follow from the value. The witness signs the entry that promised the secret
    (``days.sign_promise``), so the market could not know the value when it chose the secret.
    """

    day: int
    secret: str
    #: By the key that the promise names, in hex; empty: nobody witnessed the promise.
    witness_signature: str = ""


@dataclass(frozen=True, slots=True)
class ExpressAnswered:
    """The express lane answered a job; its seats are cells that tasks of this log hold.

    The answer follows from the question alone (``scheduler.prompts.answers``), so a
    reader of the log can compute it again. No price and no cell of the auction changes.
    """

    job_id: str
    question: Mapping[str, Any]
    answer: Mapping[str, Any]
    #: Cells that the job runs in, with the task that holds each; none for a refusal.
    seats: tuple[tuple[str, Cell], ...] = ()
    #: Jobs that waited and got other cells for it, with the cells they run in now.
    moved: Mapping[str, tuple[tuple[str, Cell], ...]] = field(
        default_factory=dict[str, "tuple[tuple[str, Cell], ...]"]
    )


@dataclass(frozen=True, slots=True)
class ExpressPlanned:
    """The express lane planned waiting jobs again, since a seat came free before its time.

    The answer follows from the question alone, as in ``ExpressAnswered``.
    """

    question: Mapping[str, Any]
    answer: Mapping[str, Any]
    #: As in ``ExpressAnswered``.
    moved: Mapping[str, tuple[tuple[str, Cell], ...]]


@dataclass(frozen=True, slots=True)
class ErratumNoted:
    """The market says that an earlier entry is wrong. Nothing is changed or taken back by it.

    It excuses what a replay finds there only where it names the same rule and the same amounts.
    """

    #: Position of that entry.
    entry: int
    #: How it came about, in the market's words.
    problem: str
    #: What a replay finds wrong with it, in the verifier's words.
    rule: str = ""
    #: By kind of price, how far the entry's furthest is from what follows from the log there.
    off_by: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class LogRestored:
    """The market goes on from a backup; what came after the entry before this one is lost.

    It changes nothing. Heads and receipts of lost entries are with those who got them: a verifier
    counts them as lost where the market signed them before it says this, and not after.
    """

    #: ISO 8601, by the market's clock: when the backup was made, and when it was put back.
    backed_up_at: str
    restored_at: str


Event = (
    BidsReceived
    | ReceiptsVoided
    | BidArrived
    | BidPriced
    | BundleArrived
    | SlotAdvanced
    | NodeJoined
    | NodeChanged
    | NodeLeft
    | VendorChanged
    | PreparationEnded
    | CellsReleased
    | TaskReplanned
    | PlansMoved
    | PricesSolved
    | RatesPosted
    | RulesChanged
    | DayPromised
    | DayOpened
    | ExpressAnswered
    | ExpressPlanned
    | ErratumNoted
    | LogRestored
)
