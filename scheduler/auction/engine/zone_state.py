"""One zone's rules, policy, prices and cells, and the moves that change prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import asdict, replace

import numpy as np

from scheduler.auction.engine.house_asks import HouseAsks
from scheduler.auction.engine.new_cells import price_new_nodes
from scheduler.auction.engine.price_policies import (
    AdmittedSchedule,
    Policies,
    PricePolicy,
    make_policy,
)
from scheduler.auction.engine.receipts import OpenBundle, Receipts
from scheduler.auction.engine.reserves import find_rates, move_prices
from scheduler.auction.engine.returned_cells import ReturnedCells
from scheduler.auction.engine.waiting_rules import (
    WaitingRules,
    add_waiting,
    drop_due_rules,
    find_due_rules,
    take_charges,
)
from scheduler.auction.log.codec import rules_to_json
from scheduler.auction.log.events import (
    DayOpened,
    DayPromised,
    Event,
    NodeChanged,
    NodeJoined,
    NodeLeft,
    PricesSolved,
    RatesPosted,
    RulesChanged,
    SlotAdvanced,
)
from scheduler.auction.log.outcomes import GridChange
from scheduler.auction.log.rules import FIXED_RULES, ZoneRules
from scheduler.auction.search.grid import TOLERANCE, Floats, Grid
from scheduler.auction.search.holdings import TaskHolding
from scheduler.auction.search.task_plan import TaskPlan
from scheduler.auction.search.task_search import Search
from scheduler.public_log.days import DayPromise, DayValue, lapse_promise, open_day, promise_day
from scheduler.public_log.entries import digest
from scheduler.types import Beat, Cell, Horizon, NodeSpec, Task

#: Entries with which a day begins; as the lane writes them, no other comes between.
_BEGINS_DAY = (
    *(SlotAdvanced, PricesSolved, DayOpened, DayPromised),
    *(RulesChanged, NodeJoined, NodeChanged, NodeLeft),
)

#: What an admission added to the compute and memory price of each of its cells.
Rises = tuple[tuple[float, float], ...]


class ZoneState:
    """What the decisions of a zone are made from; only the engine holds one."""

    def __init__(self, rules: ZoneRules, policies: Policies) -> None:
        self.rules = rules
        self._policies = policies
        self.policy: PricePolicy = make_policy(rules, policies)
        self.policy_state = self.policy.start()
        self.grid = Grid(
            horizon=Horizon(first_slot=rules.first_slot, slots=rules.horizon_slots),
            base_memory=rules.base_memory,
        )
        self.receipts: Receipts = {}
        #: Decided, its bids being entered now.
        self.bundle: OpenBundle | None = None
        if rules.posts_rates:
            self.grid.reserve_price = np.empty((rules.horizon_slots, 0))
        #: Rates in force; ``None``: none were posted, or asks are paid.
        self.posted: RatesPosted | None = None
        self.returned = ReturnedCells()
        #: The latest beat; ``None`` before the log's first.
        self.beat: Beat | None = None
        self.day = DayValue(digest(rules_to_json(rules)))
        self.waiting: WaitingRules = ()
        self.house_asks = HouseAsks()

    def copy(self) -> ZoneState:
        """Give a state that can be changed apart from this one, without its receipts."""
        other = copy(self)
        other.receipts, other.bundle = {}, None
        other.grid, other.returned = self.grid.copy(), self.returned.copy()
        return other

    def search(self, task: Task, slot: int) -> Search:
        """Lay a task out over the cells, as the policy has them searched."""
        return self.policy.search(grid=self.grid, task=task, from_slot=slot)

    # -- admissions ----------------------------------------------------------

    def observe(self, task: Task) -> None:
        """Let a bid that has just been decided take part in what prices are made of."""
        self.policy_state = self.policy.observe(self.policy_state, task)

    def take(self, task: Task, plan: TaskPlan, *, is_sold: bool = True) -> Rises:
        """Move the prices of a plan's cells and reserve them; give the rises.

        Nobody pays for a plan that is not sold.

        Raises
        ------
        ValueError
            A cell has no room for it: it would be sold twice. Nothing was changed.
        """
        self._check_room(task, plan)
        if is_sold:
            self.returned.sell(task.id, plan, memory=float(task.memory_demand))
        rises = self.raise_prices(task, plan)
        cells = plan.schedule.cells
        holding = TaskHolding(
            cells=cells,
            rates=tuple(plan.rate.tolist()),
            memories=(float(task.memory_demand),) * len(cells),
            compute_rises=tuple(compute for compute, _ in rises),
            memory_rises=tuple(memory for _, memory in rises),
        )
        self.grid.reserve(task.id, holding, rows=plan.rows, columns=plan.columns, rate=plan.rate)
        if task.verified_only:
            # Late jobs are planned again for no longer than there are slots on sale.
            self.grid.verified_only[task.id] = task.deadline_slot + self.grid.slots
        if plan.schedule.ready_slot is not None:
            offer = task.vendors[plan.schedule.vendor]
            self.grid.vendors.reserve(task.id, offer, ready=plan.schedule.ready_slot)
        return rises

    def _check_room(self, task: Task, plan: TaskPlan) -> None:
        grid, at = self.grid, (plan.rows, plan.columns)
        # Twice the search's tolerance, which what it found may have used up.
        compute_slack = 2 * TOLERANCE * grid.compute_capacity[plan.columns]
        memory_slack = 2 * TOLERANCE * np.abs(grid.memory_capacity[plan.columns])
        if (grid.compute_free[at] < plan.rate - compute_slack).any() or (
            grid.memory_free[at] < task.memory_demand - memory_slack
        ).any():
            raise ValueError(f"{task.id} is given cells that have no room for it")

    def raise_prices(self, task: Task, plan: TaskPlan) -> Rises:
        """Move the prices of a plan's cells; give the rises."""
        grid, rows, columns = self.grid, plan.rows, plan.columns
        admission = AdmittedSchedule(
            task=task,
            value=task.bid - plan.parts.vendor - plan.parts.operational,
            rate=plan.rate,
            compute_capacity=grid.compute_capacity[columns],
            memory_capacity=grid.memory_capacity[columns],
            compute_price=plan.compute_price,
            memory_price=plan.memory_price,
        )
        rise = self.policy.raise_prices(self.policy_state, admission)
        compute_share = plan.rate / admission.compute_capacity
        memory_share = task.memory_demand / admission.memory_capacity
        # In this order a rise that undoes the growth leaves the price as it was to the
        # last bit, and nodes that cost the same go on doing so.
        grid.compute_price[rows, columns] = plan.compute_price + (
            plan.compute_price * compute_share + rise.compute_rise
        )
        grid.memory_price[rows, columns] = plan.memory_price + (
            plan.memory_price * memory_share + rise.memory_rise
        )
        return tuple(zip(rise.compute_rise.tolist(), rise.memory_rise.tolist(), strict=True))

    # -- slots, nodes and rates ----------------------------------------------

    def advance(self, beat: Beat) -> GridChange:
        """Retire the slots before a beat's and open as many at the end, at posted rates.

        After the first beat of a day the rules hold that waited for it.

        Returns
        -------
        GridChange
            How much was sold again of cells that owners gave back and that begin now.
        """
        grid, slot, yesterday, is_first = self.grid, beat.slot, self.today, self.beat is None
        sold_again = self.returned.begin(slot, grid)
        self._take_due_rules()
        self.beat = beat
        self.day = lapse_promise(self.day, today=self.today)
        opened = min(max(slot - grid.first_slot, 0), grid.slots)
        grid.advance(slot)
        if self.today > yesterday:
            self.house_asks = self.house_asks.begin_day(self.today, grid.nodes)
        elif not is_first:
            # A day that brings no bid has begun all the same.
            self.house_asks = self.house_asks.close()
        if opened and len(grid.reserve_price):
            grid.reserve_price[-opened:] = self._find_reserves()[-opened:]
        return GridChange(sold_again=sold_again)

    def add_node(self, node: NodeSpec) -> None:
        """Put a node's cells on sale, at its posted rate where rates are posted.

        Where empty cells have prices it costs what the cheapest of its type does.
        """
        self.grid.add_node(node)
        if len(self.grid.reserve_price):
            self.grid.reserve_price[:, -1] = self._find_reserves()[:, -1]
        if self.policy.prices_empty_cells:
            price_new_nodes(self.grid, [node.id])

    def post_rates(self, event: RatesPosted) -> None:
        """Take new rates for all cells on sale; what is sold stays as it was sold.

        Raises
        ------
        ValueError
            If the rules have asks paid.
        """
        if not self.rules.posts_rates:
            raise ValueError("rates were posted where the rules have asks paid")
        self.posted = event
        move_prices(self.grid, self._find_reserves())
        self.returned.withdraw_unsold(self.grid)

    def find_last_reserves(self) -> Floats:
        """Give the reserves of all cells, and of those off sale the day-ahead rates.

        Infinite where a node has no posted rate; empty where asks are paid.
        """
        grid = self.grid
        if self.posted is None or not len(grid.reserve_price):
            return grid.reserve_price
        rates, _ = find_rates(self.posted, grid.nodes, first_slot=grid.first_slot, slots=grid.slots)
        off_sale = np.where(rates > 0, rates, np.inf)
        return np.where(grid.reserve_price < np.inf, grid.reserve_price, off_sale)

    def _find_reserves(self, worth: Mapping[str, tuple[float, ...]] | None = None) -> Floats:
        """Give the reserves of all cells, infinite before rates are posted.

        They are the day-ahead rates, or less where a sample's ``worth`` is.
        """
        grid = self.grid
        if self.posted is None:
            return np.full(grid.compute_price.shape, np.inf)
        rates, on_sale = find_rates(
            self.posted,
            grid.nodes,
            first_slot=grid.first_slot,
            slots=grid.slots,
            sample_worth=worth,
        )
        return np.where(on_sale, rates, np.inf)

    # -- releases ------------------------------------------------------------

    def release(self, task_id: str, cells: Iterable[Cell]) -> tuple[Cell, ...]:
        """Put cells back on sale and take back what their admission added.

        An empty cell costs what an unsold one does; elsewhere the price steps
        back by the released admission's own rise.
        """
        grid = self.grid
        gone = grid.release(task_id, cells)
        for hold in gone:
            k, row = grid.column[hold.cell.node], grid.row(hold.cell.slot)
            empty = bool(grid.load[row, k] == 0)
            for price, rise, used, capacity in (
                (grid.compute_price, hold.compute_rise, hold.rate, grid.compute_capacity[k]),
                (grid.memory_price, hold.memory_rise, hold.memory, grid.memory_capacity[k]),
            ):
                price[row, k] = self.policy.lower_price(
                    price=float(price[row, k]),
                    rise=rise,
                    # A node may have been changed to have nothing at all.
                    share=used / float(capacity) if capacity > 0 else 0.0,
                    empty=empty,
                )
        return tuple(hold.cell for hold in gone)

    # -- rules and solved prices -----------------------------------------------

    @property
    def today(self) -> int:
        """The day that the first slot on sale is of."""
        return self.grid.first_slot // self.rules.day_slots

    def note_entry(self, event: Event, *, entry_hash: str) -> None:
        """Note that an event is in the log.

        A witness signs the hash of an entry that promised a day. What has no part in a day's begin
        ends it, and asks rise no more.
        """
        if not isinstance(event, _BEGINS_DAY):
            self.house_asks = self.house_asks.close()
        if isinstance(event, DayPromised) and self.day.promise is not None:
            self.day = replace(self.day, promise=replace(self.day.promise, entry_hash=entry_hash))

    def take_day(self, event: DayPromised | DayOpened) -> None:
        """Take the promise of the next day's secret, or the value of one that was promised.

        Raises
        ------
        ValueError
            As ``public_log.days.promise_day`` and ``open_day``.
        """
        if isinstance(event, DayPromised):
            self.day = promise_day(self.day, DayPromise(**asdict(event)), today=self.today)
        else:
            self.day = open_day(self.day, **asdict(event), today=self.today)

    def change_rules(self, rules: ZoneRules) -> None:
        """Go on under other rules, from the day on whose seeds none can see yet.

        On a log's first day they hold at once, until the next day is promised; what cards and tax
        cost always does.

        Raises
        ------
        ValueError
            If something differs that the cells on sale were made by, or there is no such policy.
        """
        for name in FIXED_RULES:
            if getattr(rules, name) != getattr(self.rules, name):
                raise ValueError(f"{name} cannot change: the log began with it")
        make_policy(rules, self._policies)
        if self.takes_rules_at_once:
            self._take_rules(rules)
        else:
            self.waiting = add_waiting(self.waiting, rules, in_force=self.rules, today=self.today)
            self.rules = take_charges(self.rules, rules)

    @property
    def takes_rules_at_once(self) -> bool:
        """Whether changed rules hold now: on a log's first day, while no day is promised."""
        is_first_day = self.grid.first_slot < self.rules.first_slot + self.rules.day_slots
        return is_first_day and self.day.day is None and self.day.promise is None

    def find_next_rules(self) -> ZoneRules:
        """Give the rules that hold from the next beat on, unless others are changed by then."""
        return find_due_rules(self.waiting, self.rules, day=self.today)

    def _take_due_rules(self) -> None:
        rules = self.find_next_rules()
        self.waiting = drop_due_rules(self.waiting, day=self.today)
        if rules != self.rules:
            self._take_rules(rules)

    def _take_rules(self, rules: ZoneRules) -> None:
        before, policy = self.policy, make_policy(rules, self._policies)
        start = policy.start()
        known = {name: value for name, value in self.policy_state.items() if name in start}
        self.rules, self.policy, self.policy_state = rules, policy, {**start, **known}
        self._change_pay()
        if before.prices_empty_cells and not policy.prices_empty_cells:
            # Solved prices are the forecast's; this policy gives empty cells none.
            empty = self.grid.load == 0
            self.grid.compute_price[empty] = 0.0
            self.grid.memory_price[empty] = 0.0
        self.returned.withdraw_unsold(self.grid)

    def _change_pay(self) -> None:
        """Go over to posted rates or to asks, if the rules have changed so."""
        grid = self.grid
        if self.rules.posts_rates and not len(grid.reserve_price):
            move_prices(grid, self._find_reserves())
        elif not self.rules.posts_rates and len(grid.reserve_price):
            asks = np.broadcast_to(grid.ask_per_sample, grid.reserve_price.shape)
            move_prices(grid, asks)
            self.posted, grid.reserve_price = None, np.empty((0, 0))

    def set_prices(self, event: PricesSolved) -> None:
        """Take solved prices for the slots and nodes that are on sale.

        A node that joined since the state they were solved on costs what the cheapest of its type
        does.
        """
        grid = self.grid
        grid.pack_by(event.usual_rates)
        grid.own_asks = event.own_asks
        if self.posted is not None:
            passed = max(grid.first_slot - event.first_slot, 0)
            worth = {name: row[passed:] for name, row in event.sample_worth.items()}
            grid.reserve_price = self._find_reserves(worth)
            self.returned.withdraw_unsold(grid)
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
                        # Of two zeros the first is taken, so that -0.0 is the zero that a log has.
                        target[grid.row(slot), k] = max(0.0, price)
        price_new_nodes(grid, [name for name in grid.column if name not in event.compute_price])
