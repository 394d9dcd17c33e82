"""The auction of one zone: events in, decisions out, everything replayable."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.auction import snapshots
from scheduler.auction.events import (
    BidArrived,
    CellsReleased,
    Event,
    NodeChanged,
    NodeJoined,
    NodeLeft,
    PricesSolved,
    RulesChanged,
    SlotAdvanced,
    TaskReplanned,
)
from scheduler.auction.grid import Floats, Grid, Hold, Reservation, until
from scheduler.auction.log import Entry, digest, make_entry
from scheduler.auction.outcomes import Changed, Dropped, Outcome, Released, Replan
from scheduler.auction.policies import Admission, Policy, Raised, policy_for
from scheduler.auction.rules import FIXED_RULES, ZoneRules, rules_to_json
from scheduler.auction.search import Plan, Search
from scheduler.types import (
    Cell,
    Decision,
    Horizon,
    Node,
    PriceParts,
    PricePoint,
    Quote,
    Refusal,
    Task,
)


@dataclass(frozen=True, slots=True)
class Prices:
    """Dual prices of every cell on sale, nodes by slots."""

    node_ids: tuple[str, ...]
    first_slot: int
    #: Per sample.
    compute_price: Floats
    #: Per GB and slot.
    memory_price: Floats
    #: Sold share of each cell; 0 where the node is not on sale.
    compute_sold: Floats
    memory_sold: Floats
    #: Whether the node is on sale in the slot.
    on_sale: NDArray[np.bool_]


class Engine:
    """One zone's auction, moved only by events.

    The price of a task is the cost of its cheapest schedule at prices fixed by
    the events before it; it is admitted if and only if its bid is above that
    price, and pays it. All guarantees follow from this one sentence and are
    tested as such.

    Parameters
    ----------
    rules : ZoneRules
    """

    def __init__(self, rules: ZoneRules) -> None:
        self.rules = rules
        self.position = 0
        self.head_hash = digest(rules_to_json(rules))
        self._policy: Policy = policy_for(rules)
        self._memory = self._policy.start()
        #: Price movements to use instead of the policy's, while following a log.
        self._followed: tuple[tuple[float, float], ...] | None = None
        self._grid = Grid(
            horizon=Horizon(first_slot=rules.first_slot, slots=rules.horizon_slots),
            base_memory=rules.base_memory,
        )

    # -- what the market calls -------------------------------------------------

    def apply(self, event: Event) -> Entry:
        """Apply an event and chain it to the log.

        Returns
        -------
        Entry
            The event, its outcome and the hash that the next entry builds on.
        """
        outcome = self.transition(event)
        entry = make_entry(
            position=self.position + 1, event=event, outcome=outcome, prev_hash=self.head_hash
        )
        self.position, self.head_hash = entry.position, entry.hash
        return entry

    def transition(self, event: Event) -> Outcome:
        """Apply an event without keeping a log; simulations call this."""
        match event:
            case BidArrived(task=task, slot=slot):
                return self._decide(task, slot)
            case SlotAdvanced(slot=slot):
                self._grid.advance(slot)
                return Changed()
            case NodeJoined(node=node):
                return self._node_joined(node)
            case NodeChanged(node=node):
                return self._node_changed(node)
            case NodeLeft(node_id=node_id, from_slot=from_slot):
                return self._node_left(node_id, from_slot)
            case CellsReleased(task_id=task_id, cells=cells):
                return Released(cells=self._release(task_id, cells))
            case TaskReplanned(task=task, slot=slot):
                return self._replan(task, slot)
            case PricesSolved():
                self._set_prices(event)
                return Changed()
            case RulesChanged(rules=rules):
                self._change_rules(rules)
                return Changed()

    def follow(self, event: Event, logged: Outcome) -> Outcome:
        """Apply an event with price movements taken from its logged outcome.

        For checking a log in which bids are left out: whatever does not depend on
        them is worked out again. No entry is made.
        """
        self._followed = logged.raised if isinstance(logged, Decision | Replan) else None
        try:
            return self.transition(event)
        finally:
            self._followed = None

    def retrace(self, event: Event, logged: Outcome, *, entry_hash: str) -> None:
        """Come to the state after an entry of the log without deciding again.

        What the log says was decided is taken as it stands, so whoever calls this
        trusts it, as one trusts a snapshot; ``verify`` decides again. The state is the
        same to the last bit, at a fraction of the time.

        Raises
        ------
        ValueError
            If the outcome is not one the event can have on this state.
        """
        again = self._policy.raises_before_check
        if isinstance(event, BidArrived) and isinstance(logged, Decision) and not again:
            self._memory = self._policy.observed(self._memory, event.task)
            if logged.admitted:
                self._take(event.task, logged)
        elif isinstance(event, TaskReplanned) and isinstance(logged, Replan):
            task = event.task
            self._release(task.id, self._grid.held(task.id, from_slot=event.slot))
            if logged.schedule is not None:
                self._take(task, logged)
        else:
            self.transition(event)
        self.position, self.head_hash = self.position + 1, entry_hash

    def _take(self, task: Task, logged: Decision | Replan) -> None:
        """Reserve a logged schedule at the prices its admission moved."""
        grid, schedule, parts = self._grid, logged.schedule, logged.parts
        if schedule is None or parts is None:
            raise ValueError(f"the log admits {task.id} without a schedule")
        try:
            columns = [grid.column[cell.node] for cell in schedule.cells]
            rate = [task.rates[grid.nodes[k].gpu_type] for k in columns]
        except KeyError as error:
            raise ValueError(f"the log puts {task.id} on {error}, where it cannot run") from error
        if any(cell.slot not in grid.horizon for cell in schedule.cells):
            raise ValueError(f"the log puts {task.id} on slots that are not on sale")
        plan = Plan(
            schedule=schedule,
            parts=parts,
            rows=np.array([grid.row(cell.slot) for cell in schedule.cells], np.int64),
            columns=np.array(columns, np.int64),
            rate=np.array(rate, np.float64),
        )
        grid.reserve(task.id, self._raise(task, plan))

    def quote(self, task: Task, *, slot: int) -> Quote:
        """Give the price of a task now and by deadline, reserving nothing.

        Parameters
        ----------
        task : Task
            Its bid is not looked at.
        slot : int
            Slot in which it would be decided.
        """
        search = self._search(task, slot)
        plan = search.at_deadline(task.deadline_slot)
        last = self._grid.horizon.last_slot
        curve = tuple(
            PricePoint(
                deadline_slot=deadline,
                price=price + self._rounding(price),
                finish_slot=finish,
            )
            for deadline, price, finish in search.price_curve(first=slot, last=last)
        )
        return Quote(
            schedule=None if plan is None else plan.schedule,
            parts=None if plan is None else self._rounded(plan.parts),
            refusal=search.refusal() if plan is None else None,
            curve=_falling(curve),
            position=self.position,
        )

    def prices(self) -> Prices:
        """Give a copy of all prices, nodes by slots."""
        grid = self._grid
        on_sale = grid.compute_free > -np.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            compute = 1 - np.where(on_sale, grid.compute_free, 0.0) / grid.compute_capacity
            memory = 1 - np.where(on_sale, grid.memory_free, 0.0) / grid.memory_capacity
        return Prices(
            node_ids=tuple(node.id for node in grid.nodes),
            first_slot=grid.first_slot,
            compute_price=grid.compute_price.T.copy(),
            memory_price=grid.memory_price.T.copy(),
            compute_sold=np.where(on_sale & np.isfinite(compute), compute, 0.0).T.copy(),
            memory_sold=np.where(on_sale & np.isfinite(memory), memory, 0.0).T.copy(),
            on_sale=on_sale.T.copy(),
        )

    def reservations(self) -> tuple[Reservation, ...]:
        """Give all cells held from the first slot on sale on."""
        return tuple(self._grid.reservations())

    @property
    def horizon(self) -> Horizon:
        """Slots on sale."""
        return self._grid.horizon

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes on sale, in the order they joined."""
        return tuple(self._grid.nodes)

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON values; ``restore`` brings it back exactly."""
        return snapshots.take(
            rules=self.rules,
            position=self.position,
            head_hash=self.head_hash,
            memory=self._memory,
            grid=self._grid,
        )

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Engine:
        """Bring an engine back from ``snapshot``."""
        state = snapshots.read(snapshot)
        engine = cls(state.rules)
        engine.position = state.position
        engine.head_hash = state.head_hash
        engine._memory = state.memory
        engine._grid = state.grid
        return engine

    # -- bids ------------------------------------------------------------------

    def _search(self, task: Task, slot: int) -> Search:
        return Search(
            grid=self._grid,
            task=task,
            from_slot=slot,
            additive=self._policy.additive,
            residual=self._policy.residual,
        )

    def _decide(self, task: Task, slot: int) -> Decision:
        search = self._search(task, slot)
        plan = search.at_deadline(task.deadline_slot)
        if plan is None:
            decision = self._refused(search, task, search.refusal(), None)
            self._memory = self._policy.observed(self._memory, task)
            return decision
        parts = self._rounded(plan.parts)
        price = parts.total
        if not task.bid > price:
            decision = self._refused(search, task, Refusal.PRICE, plan)
            self._memory = self._policy.observed(self._memory, task)
            return decision
        fits = self._policy.residual or self._grid.fits(
            plan.schedule.cells, rates=dict(task.rates), memory=task.memory_demand
        )
        decision = (
            Decision(
                task_id=task.id,
                admitted=True,
                payment=self._payment(parts),
                surplus=task.bid - price,
                schedule=plan.schedule,
                parts=parts,
                winning_price=price,
            )
            if fits
            else self._refused(search, task, Refusal.CAPACITY, plan)
        )
        # Only now does the bid take part in what later prices are made of.
        self._memory = self._policy.observed(self._memory, task)
        if fits or self._policy.raises_before_check:
            holds = self._raise(task, plan)
            if fits:
                self._grid.reserve(task.id, holds)
            decision = replace(decision, raised=_rises(holds))
        return decision

    def _refused(self, search: Search, task: Task, refusal: Refusal, plan: Plan | None) -> Decision:
        parts = None if plan is None else self._rounded(plan.parts)
        price = None if parts is None else parts.total
        deadline = deadline_price = None
        if self.rules.refusal_hints and self._policy.residual:
            deadline = search.earliest_below(
                first=task.deadline_slot + 1,
                last=self._grid.horizon.last_slot,
                ceiling=self._most_below(task.bid),
            )
            better = None if deadline is None else search.at_deadline(deadline)
            deadline_price = None if better is None else self._rounded(better.parts).total
        return Decision(
            task_id=task.id,
            admitted=False,
            payment=0.0,
            surplus=None if price is None else task.bid - price,
            schedule=None if plan is None else plan.schedule,
            parts=parts,
            refusal=refusal,
            winning_price=price if refusal is Refusal.PRICE else None,
            winning_deadline_slot=deadline,
            winning_deadline_price=deadline_price,
        )

    def _payment(self, parts: PriceParts) -> float:
        if self.rules.pays_eq14:
            return parts.vendor + parts.compute + parts.memory
        return parts.total

    def _rounded(self, parts: PriceParts) -> PriceParts:
        """Round a price up to whole units of money."""
        return replace(parts, rounding=self._rounding(parts.total))

    def _rounding(self, price: float) -> float:
        """Give what is missing to the next whole unit of money."""
        quantum = self.rules.money_quantum
        if quantum <= 0:
            return 0.0
        # The sum's own rounding error must not cost a whole unit.
        return math.ceil(price / quantum - 1e-9) * quantum - price

    def _most_below(self, bid: float) -> float:
        """Give the price before rounding that a plan must undercut for a bid to win."""
        quantum = self.rules.money_quantum
        if quantum <= 0:
            return bid
        return (math.ceil(bid / quantum) - 1) * quantum + 1e-9 * quantum

    def _raise(self, task: Task, plan: Plan) -> list[Hold]:
        """Move the prices of a plan's cells; give what reserving them would hold."""
        grid, rows, columns = self._grid, plan.rows, plan.columns
        admission = Admission(
            task=task,
            value=task.bid - plan.parts.vendor - plan.parts.operational,
            rate=plan.rate,
            compute_capacity=grid.compute_capacity[columns],
            memory_capacity=grid.memory_capacity[columns],
            compute_price=grid.compute_price[rows, columns],
            memory_price=grid.memory_price[rows, columns],
        )
        if self._followed is None:
            raised = self._policy.raised(self._memory, admission)
        else:
            table = np.zeros((len(rows), 2))
            # A log of another length is not this engine's, as its comparison says.
            given = self._followed[: len(rows)]
            table[: len(given)] = np.array(given, np.float64).reshape(-1, 2)
            raised = Raised(compute_rise=table[:, 0], memory_rise=table[:, 1])
        compute_share = admission.rate / admission.compute_capacity
        memory_share = task.memory_demand / admission.memory_capacity
        # In this order a rise that undoes the growth leaves the price as it was to the
        # last bit, and nodes that cost the same go on doing so.
        grid.compute_price[rows, columns] = admission.compute_price + (
            admission.compute_price * compute_share + raised.compute_rise
        )
        grid.memory_price[rows, columns] = admission.memory_price + (
            admission.memory_price * memory_share + raised.memory_rise
        )
        memory = float(task.memory_demand)
        return [
            Hold(cell, rate, memory, compute_rise, memory_rise)
            for cell, rate, compute_rise, memory_rise in zip(
                plan.schedule.cells,
                plan.rate.tolist(),
                raised.compute_rise.tolist(),
                raised.memory_rise.tolist(),
                strict=True,
            )
        ]

    # -- reservations ----------------------------------------------------------

    def _release(self, task_id: str, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
        """Put cells back on sale and take back what their admission added.

        An empty cell costs what an unsold one does; elsewhere the price steps
        back by the released admission's own rise.
        """
        grid = self._grid
        gone = grid.release(task_id, cells)
        for hold in gone:
            k, row = grid.column[hold.cell.node], grid.row(hold.cell.slot)
            grid.compute_price[row, k] = self._policy.lowered(
                price=float(grid.compute_price[row, k]),
                rise=hold.compute_rise,
                share=hold.rate / float(grid.compute_capacity[k]),
                empty=bool(grid.load[row, k] == 0),
            )
            grid.memory_price[row, k] = self._policy.lowered(
                price=float(grid.memory_price[row, k]),
                rise=hold.memory_rise,
                share=hold.memory / float(grid.memory_capacity[k]),
                empty=bool(grid.load[row, k] == 0),
            )
        return tuple(hold.cell for hold in gone)

    def _replan(self, task: Task, slot: int) -> Replan:
        released = self._release(task.id, self._grid.held(task.id, from_slot=slot))
        search = Search(
            grid=self._grid,
            task=task,
            from_slot=slot,
            additive=self._policy.additive,
            residual=True,
        )
        plan = search.at_deadline(task.deadline_slot)
        late = plan is None
        if plan is None:
            # A job is never lost: as early as can be after the deadline, else as
            # much of the work as can be had at all.
            later = search.by_deadline(
                first=task.deadline_slot + 1, last=self._grid.horizon.last_slot
            )
            plan = next(iter(later.values()), None)
        complete = plan is not None
        if plan is None:
            plan = search.most_work()
        holds: list[Hold] = []
        if plan is not None:
            holds = self._raise(task, plan)
            self._grid.reserve(task.id, holds)
        return Replan(
            task_id=task.id,
            schedule=None if plan is None else plan.schedule,
            parts=None if plan is None else plan.parts,
            released=released,
            complete=complete,
            late=late,
            raised=_rises(holds),
        )

    def _drop(self, lost: list[tuple[str, Hold]]) -> tuple[Dropped, ...]:
        by_task: dict[str, list[Cell]] = {}
        for task_id, hold in lost:
            by_task.setdefault(task_id, []).append(hold.cell)
        return tuple(
            Dropped(task_id=task_id, cells=self._release(task_id, tuple(cells)))
            for task_id, cells in by_task.items()
        )

    # -- nodes and prices --------------------------------------------------------

    def _node_joined(self, node: Node) -> Changed:
        dropped: tuple[Dropped, ...] = ()
        if node.id in self._grid.column:
            dropped = self._drop(self._grid.held_after(node.id, self._grid.first_slot))
            self._grid.remove_node(node.id)
        self._grid.add_node(node)
        return Changed(dropped=dropped)

    def _node_changed(self, node: Node) -> Changed:
        if node.id not in self._grid.column:
            self._grid.add_node(node)
            return Changed()
        self._grid.change_node(node)
        dropped = self._drop(self._grid.overbooked(node.id))
        self._grid.change_node(node)
        return Changed(dropped=dropped)

    def _node_left(self, node_id: str, from_slot: int) -> Changed:
        grid = self._grid
        if node_id not in grid.column:
            return Changed()
        dropped = self._drop(grid.held_after(node_id, from_slot))
        if from_slot <= grid.first_slot:
            grid.remove_node(node_id)
        else:
            grid.change_node(until(grid.nodes[grid.column[node_id]], from_slot - 1))
        return Changed(dropped=dropped)

    def _change_rules(self, rules: ZoneRules) -> None:
        """Go on under other rules.

        Raises
        ------
        ValueError
            If something differs that the cells on sale were made by.
        """
        for name in FIXED_RULES:
            if getattr(rules, name) != getattr(self.rules, name):
                raise ValueError(f"{name} cannot change: the log began with it")
        before, policy = self._policy, policy_for(rules)
        start = policy.start()
        known = {name: value for name, value in self._memory.items() if name in start}
        self.rules, self._policy, self._memory = rules, policy, {**start, **known}
        if before.additive and not policy.additive:
            # Solved prices are the forecast's; this policy gives empty cells none.
            empty = self._grid.load == 0
            self._grid.compute_price[empty] = 0.0
            self._grid.memory_price[empty] = 0.0

    def _set_prices(self, event: PricesSolved) -> None:
        grid = self._grid
        grid.pack_by(event.usual_rates)
        for target, given in (
            (grid.compute_price, event.compute_price),
            (grid.memory_price, event.memory_price),
        ):
            for node_id, row in given.items():
                k = grid.column.get(node_id)
                if k is None:
                    continue
                for i, price in enumerate(row):
                    slot = event.first_slot + i
                    if slot in grid.horizon:
                        target[grid.row(slot), k] = max(price, 0.0)


def _falling(curve: tuple[PricePoint, ...]) -> tuple[PricePoint, ...]:
    """Drop treads that rounding to whole units made equal to the one before."""
    kept: list[PricePoint] = []
    for point in curve:
        if not kept or point.price < kept[-1].price:
            kept.append(point)
    return tuple(kept)


def _rises(holds: list[Hold]) -> tuple[tuple[float, float], ...]:
    return tuple((hold.compute_rise, hold.memory_rise) for hold in holds)
