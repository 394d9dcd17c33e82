"""The auction of one zone: events in, decisions out, everything replayable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import chain
from typing import Any

from scheduler.auction.engine import (
    bundles,
    decide,
    fleet_events,
    give_backs,
    plan_moves,
    replans,
    retrace,
    saved_state,
)
from scheduler.auction.engine.cell_prices import Prices, copy_prices
from scheduler.auction.engine.decide import DeadlineHint
from scheduler.auction.engine.price_policies import SELLING_POLICIES, Policies
from scheduler.auction.engine.receipts import check_receipts, follow_bundle, settle_receipts
from scheduler.auction.engine.seats import check_seats
from scheduler.auction.engine.waiting_rules import RULES_AFTER
from scheduler.auction.engine.zone_state import ZoneState
from scheduler.auction.log.chain import ChainEntry, chain_entry
from scheduler.auction.log.codec import rules_to_json
from scheduler.auction.log.events import (
    BidArrived,
    BidPriced,
    BidsReceived,
    BundleArrived,
    CellsReleased,
    DayOpened,
    DayPromised,
    ErratumNoted,
    Event,
    ExpressAnswered,
    ExpressPlanned,
    LogRestored,
    NodeChanged,
    NodeJoined,
    NodeLeft,
    PlansMoved,
    PreparationEnded,
    PricesSolved,
    RatesPosted,
    ReceiptsVoided,
    RulesChanged,
    SlotAdvanced,
    TaskReplanned,
    VendorChanged,
)
from scheduler.auction.log.limits import check_event
from scheduler.auction.log.outcomes import GridChange, Outcome
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.holdings import CellReservation
from scheduler.auction.search.room import Room
from scheduler.public_log.days import DayValue
from scheduler.public_log.entries import digest
from scheduler.types import Beat, BundleQuote, Cell, Decision, Horizon, NodeSpec, Quote, Task


class Engine:
    """One zone's auction, moved only by events.

    All guarantees follow from how ``decide`` prices a bid, and are tested as
    such. Not safe for threads: a zone has one writer.

    Parameters
    ----------
    rules : ZoneRules
    policies : mapping of str to policy, optional
        Those that the rules may name, now and in later ``RulesChanged`` events: what
        may sell, unless an experiment tries others.

    Raises
    ------
    ValueError
        If the rules name no policy of these.
    """

    def __init__(self, rules: ZoneRules, *, policies: Policies = SELLING_POLICIES) -> None:
        self._zone = ZoneState(rules, policies)
        self.position = 0
        self.head_hash = digest(rules_to_json(rules))

    # -- events ----------------------------------------------------------------

    def apply(self, event: Event, *, hint: DeadlineHint | None = None) -> ChainEntry:
        """Apply an event and chain it to the log.

        Parameters
        ----------
        event : Event
        hint : DeadlineHint, optional
            What a log says of a refused bid. The outcome does not depend on it; a true
            hint only saves time.

        Returns
        -------
        ChainEntry
            The event, its outcome and the hash that the next entry builds on.

        Raises
        ------
        ValueError
            As ``transition``, or if the event comes between a receipt and its decision, or
            decides a bid that has no receipt. The engine is as it was.
        """
        outcome = self._enter(event, hint=hint)
        entry = chain_entry(
            position=self.position + 1, event=event, outcome=outcome, prev_hash=self.head_hash
        )
        self.position, self.head_hash = entry.position, entry.hash
        self._zone.note_entry(event, entry_hash=entry.hash)
        return entry

    def transition(self, event: Event, *, hint: DeadlineHint | None = None) -> Outcome:
        """Apply an event without keeping a log, and so without receipts; simulations call this.

        ``hint`` is as for ``apply``.

        Raises
        ------
        ValueError
            If the event carries a number that no price can be made of, rules that cannot
            change, or plans that break a promise. The engine is as it was.
        """
        check_event(event)
        return self._move(event, hint)

    def _enter(
        self,
        event: Event,
        *,
        hint: DeadlineHint | None = None,
        sealed: Sequence[str] | None = None,
    ) -> Outcome:
        """Apply an event that has its place in a log; ``sealed`` is as for ``follow``."""
        check_event(event)
        check_receipts(self._zone.receipts, self._zone.bundle, event, sealed=sealed)
        return self._move(event, hint)

    def _move(self, event: Event, hint: DeadlineHint | None) -> Outcome:
        zone = self._zone
        outcome = self._answer(event, hint)
        settle_receipts(zone.receipts, event)
        zone.bundle = follow_bundle(zone.bundle, event)
        return outcome

    def _answer(self, event: Event, hint: DeadlineHint | None) -> Outcome:
        zone = self._zone
        match event:
            case BidsReceived() | ReceiptsVoided() | ErratumNoted() | LogRestored():
                return GridChange()
            case BidPriced():
                return decide.tell_price(zone, event)
            case BidArrived(task=task, slot=slot):
                if zone.bundle is not None:
                    return bundles.decide_member(zone, zone.bundle, task, slot)
                return self._decide(task, slot, hint)
            case BundleArrived():
                return bundles.decide_bundle(zone, event)
            case ExpressAnswered(seats=seats, moved=moved):
                check_seats(zone, chain(seats, *moved.values()))
                return GridChange()
            case ExpressPlanned(moved=moved):
                check_seats(zone, chain(*moved.values()))
                return GridChange()
            case SlotAdvanced(slot=slot, part=part):
                return zone.advance(Beat(slot, part))
            case NodeJoined(node=node):
                return fleet_events.add_node(zone, node)
            case NodeChanged(node=node):
                return fleet_events.change_node(zone, node)
            case NodeLeft(node_id=node_id, from_slot=from_slot):
                return fleet_events.remove_node(zone, node_id, from_slot)
            case CellsReleased():
                return give_backs.release_cells(zone, event)
            case VendorChanged(vendor=vendor):
                zone.grid.vendors.capacity[vendor.id] = vendor.capacity
                return GridChange()
            case PreparationEnded(task_id=task_id, slot=slot):
                zone.grid.vendors.end(task_id, slot=slot)
                return GridChange()
            case TaskReplanned():
                return replans.replan_task(zone, event)
            case PlansMoved():
                return plan_moves.move_plans(zone, event)
            case PricesSolved():
                zone.set_prices(event)
                return GridChange()
            case RatesPosted():
                zone.post_rates(event)
                return GridChange()
            case RulesChanged(rules=rules):
                zone.change_rules(rules)
                return GridChange()
            case DayPromised() | DayOpened():
                zone.take_day(event)
                return GridChange()

    def _decide(self, task: Task, slot: int, hint: DeadlineHint | None) -> Decision:
        return decide.decide(self._zone, task, slot, hint)

    def follow(
        self, event: Event, *, entry_hash: str, sealed: Sequence[str] | None = None
    ) -> Outcome:
        """Apply an event of a log in which bids are left out; no entry is made.

        All that does not depend on bids is worked out again. ``sealed`` are the seals of
        bids whose amounts are left out.

        Raises
        ------
        ValueError
            As ``apply``.
        """
        outcome = self._enter(event, sealed=sealed)
        self._zone.note_entry(event, entry_hash=entry_hash)
        return outcome

    def retrace(self, event: Event, logged: Outcome, *, entry_hash: str) -> None:
        """Come to the state after an entry of the log without deciding again.

        What the log says was decided is applied as it stands, so a caller
        trusts it, as one trusts a snapshot; ``verify`` decides again. The state is the
        same to the last bit, at a fraction of the time.

        Raises
        ------
        ValueError
            If the outcome is not one the event can have on this state. The engine is
            as it was, but where a cell would be sold twice: it is to be thrown away then.
        """
        if not retrace.retrace(self._zone, event, logged):
            self._enter(event)
        self.position, self.head_hash = self.position + 1, entry_hash
        self._zone.note_entry(event, entry_hash=entry_hash)

    # -- questions that change nothing -------------------------------------------

    def quote(self, task: Task, *, slot: int, capacities: Mapping[str, int] | None = None) -> Quote:
        """Give the price of a task now and by deadline, reserving nothing.

        Parameters
        ----------
        task : Task
            Its bid is not looked at.
        slot : int
            Slot in which it would be decided.
        capacities : mapping of str to int, optional
            What vendors will do in a slot by then, where the log does not say so yet.

        Raises
        ------
        ValueError
            If the task carries a number that no price can be made of.
        """
        check_event(BidArrived(task, slot))
        book = self._zone.grid.vendors
        known = book.capacity
        book.capacity = {**known, **(capacities or {})}
        try:
            return decide.quote(self._zone, task, slot, position=self.position)
        finally:
            book.capacity = known

    def quote_bundle(self, tasks: Sequence[Task], *, slot: int) -> BundleQuote:
        """Give the price of jobs that all win or all lose, now and by deadline.

        Parameters
        ----------
        tasks : sequence of Task
            In the order in which their bids would be entered; of one deadline.
        slot : int
            Slot in which they would be decided.

        Raises
        ------
        ValueError
            If a task carries a number that no price can be made of.
        """
        arrivals = tuple(BidArrived(task, slot, bundle="quote") for task in tasks)
        check_event(BundleArrived("quote", arrivals))
        return bundles.quote_bundle(self._zone, tasks, slot, position=self.position)

    def prices(self) -> Prices:
        """Give a copy of all prices, nodes by slots."""
        return copy_prices(self._zone.grid)

    def replica(self) -> Engine:
        """Give an engine in the same state, to try events on; no receipt is open in it."""
        other = copy(self)
        other._zone = self._zone.copy()
        return other

    def room(self, *, slot: int) -> Room:
        """Give a copy of what is free from a slot on, to try plans in."""
        return Room(self._zone.grid, slot=slot)

    def reservations(self) -> tuple[CellReservation, ...]:
        """Give all cells held from the first slot on sale on."""
        return tuple(self._zone.grid.reservations())

    @property
    def open_receipts(self) -> tuple[str, ...]:
        """Bids that were received and are not decided, in the order of their turns."""
        return tuple(self._zone.receipts)

    @property
    def rules(self) -> ZoneRules:
        """The rules in force."""
        return self._zone.rules

    @property
    def wanted_rules(self) -> ZoneRules:
        """The rules in force, or the last of those that wait for the day from which they hold."""
        return self._zone.waiting[-1][1] if self._zone.waiting else self._zone.rules

    @property
    def wanted_day(self) -> int | None:
        """The day after whose first beat ``wanted_rules`` hold; ``None`` where they do."""
        return self._zone.waiting[-1][0] + RULES_AFTER if self._zone.waiting else None

    @property
    def next_change_day(self) -> int | None:
        """The day after whose first beat rules hold that are changed now; ``None``: at once."""
        return None if self._zone.takes_rules_at_once else self.today + RULES_AFTER

    @property
    def next_rules(self) -> ZoneRules:
        """The rules that hold from the next beat on, unless others are changed by then."""
        return self._zone.find_next_rules()

    @property
    def beat(self) -> Beat | None:
        """The latest beat; ``None`` before the log's first."""
        return self._zone.beat

    @property
    def day(self) -> DayValue:
        """What seeds follow from."""
        return self._zone.day

    @property
    def today(self) -> int:
        """The day that the first slot on sale is of, counted from slot 0."""
        return self._zone.today

    def find_most_ask(self, node: NodeSpec) -> float:
        """Give the most that a node may ask as it joins or changes now; infinite if anything."""
        return fleet_events.find_most_ask(self._zone, node)

    @property
    def posted_rates(self) -> RatesPosted | None:
        """The rates in force; ``None`` where none were posted or asks are paid."""
        return self._zone.posted

    def find_posted_rates(self, cells: Iterable[Cell]) -> list[float | None]:
        """Give what a sample in cells on sale earns now; ``None`` where asks are paid."""
        grid = self._zone.grid
        if not len(grid.reserve_price):
            return [None for _ in cells]
        places = [(grid.row(cell.slot), grid.column[cell.node]) for cell in cells]
        return [float(grid.reserve_price[place]) for place in places]

    @property
    def horizon(self) -> Horizon:
        """Slots on sale."""
        return self._zone.grid.horizon

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """Nodes on sale, in the order they joined."""
        return tuple(self._zone.grid.nodes)

    @property
    def vendors(self) -> dict[str, int]:
        """Units of work that each vendor takes in a slot."""
        return dict(self._zone.grid.vendors.capacity)

    # -- snapshots ---------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON values; ``restore`` brings it back exactly."""
        place = {"position": self.position, "head_hash": self.head_hash}
        return saved_state.serialize_state(self._zone) | place

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Engine:
        """Bring an engine back from ``snapshot``."""
        engine = cls(saved_state.parse_rules(snapshot))
        saved_state.restore_state(engine._zone, snapshot)
        engine.position, engine.head_hash = int(snapshot["position"]), str(snapshot["head_hash"])
        return engine
