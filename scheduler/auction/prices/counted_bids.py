"""Which bids count: those that could win in an empty zone, and refused work up to bought work.

Later prices are made of these bids alone: of their arrivals, worths, work and rates. A bid that
could not win even in an empty zone costs its owner nothing, so it must move nothing. What an owner
has won counts whole, since it has paid for it. A job whose price was given back, because most of
its work was never done, counts like a refused bid.

To lose is free, so of refused bids only so much work counts as was bought. An owner's are *backed*,
the latest first, up to the work that it bought on the days that are read. The others of all owners
together count, the latest first, up to a ninth of the work that counts (a tenth of all), or up to
the work bought on that day by owners who bought on no other, whichever is more: where everybody is
new nothing tells a flood from demand. Three always count, with no more work each than the median of
what counts, so that three giants are no flood either. Without this bound a flood of bids just
below the price would raise it, under however many names.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median_high

from scheduler.auction.engine.payment import PaymentRule
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import TOLERANCE, Grid
from scheduler.auction.search.task_search import Search
from scheduler.types import Horizon, LaborVendor, NodeSpec, Task

#: Unbacked refused work that counts in a day, as a share of the work won and backed; and the bids
#: that always do, if not with all their work.
UNBACKED_SHARE, LEAST_UNBACKED = 1 / 9, 3
#: Share of a cost within which only the exact search tells whether a bid is above it.
_MARGIN = 1e-9
_NO_OFFER = (LaborVendor(id="", price=0.0, delay_slots=0),)
#: Rate of a task on one GPU type, and what a slot of it costs there at least.
_Option = tuple[float, float]
#: Rates of a task, its memory, and whether only verified nodes may run it.
_OptionKey = tuple[tuple[tuple[str, float], ...], float, bool]


class EmptyZone:
    """A zone's nodes with nothing sold, at their asks.

    Parameters
    ----------
    nodes : sequence of NodeSpec
        As registered: what is sold of them, and when they are on sale, is not looked at.
    base_memory : float
        GB that the base model takes on each.
    money_quantum : float
        Prices are rounded up to whole multiples of it; 0 does not round.
    """

    def __init__(
        self, nodes: Sequence[NodeSpec], *, base_memory: float, money_quantum: float = 0.0
    ) -> None:
        self._nodes = [node for node in nodes if node.compute_capacity > 0]
        self._base_memory = base_memory
        self._rule = PaymentRule(money_quantum)
        self._quantum = money_quantum
        self._options: dict[_OptionKey, list[_Option]] = {}

    def could_serve(self, task: Task) -> bool:
        """Tell whether a task would be admitted if nothing were sold.

        Parameters
        ----------
        task : Task
            Its window may lie anywhere; it states no operational costs of its own.
        """
        if not task.compute_demand > 0:
            return False
        options = self._find_options(task)
        if not options:
            return False
        fastest = max(rate for rate, _ in options)
        for offer in task.vendors or _NO_OFFER:
            slots = task.deadline_slot - task.arrival_slot - offer.delay_slots + 1
            if slots <= 0 or slots * fastest < task.compute_demand * (1 - _MARGIN):
                continue
            least, most = _bound_cost(options, task.compute_demand, slots)
            if task.bid > (offer.price + most) * (1 + _MARGIN) + self._quantum:
                return True
            if task.bid > (offer.price + least) * (1 - _MARGIN) and self._wins(task):
                return True
        return False

    def _find_options(self, task: Task) -> list[_Option]:
        """Give the task's rate and its cheapest slot on each GPU type that can hold it."""
        key = (tuple(sorted(task.rates.items())), task.memory_demand, task.verified_only)
        found = self._options.get(key)
        if found is None:
            found = self._options[key] = [
                (rate, rate * ask)
                for name, rate in task.rates.items()
                if rate > 0 and (ask := self._find_lowest_ask(name, rate, task)) < math.inf
            ]
        return found

    def _find_lowest_ask(self, gpu_type: str, rate: float, task: Task) -> float:
        """Give the lowest ask per sample among nodes that may run a task; infinity: none may."""
        return min(
            (
                node.ask / node.compute_capacity
                for node in self._nodes
                if node.gpu_type == gpu_type
                and (node.is_verified or not task.verified_only)
                and rate <= node.compute_capacity * (1 + TOLERANCE)
                and (free := node.memory_capacity - self._base_memory) > 0
                and task.memory_demand <= free * (1 + TOLERANCE)
            ),
            default=math.inf,
        )

    def _wins(self, task: Task) -> bool:
        """Let the engine's own search tell."""
        slots = task.deadline_slot - task.arrival_slot + 1
        horizon = Horizon(first_slot=task.arrival_slot, slots=slots)
        grid = Grid(horizon=horizon, base_memory=self._base_memory)
        for number, node in enumerate(self._nodes):
            # As registered, whenever it is on sale.
            grid.add_node(
                NodeSpec(
                    id=str(number),
                    gpu_type=node.gpu_type,
                    compute_capacity=node.compute_capacity,
                    memory_capacity=node.memory_capacity,
                    ask=node.ask,
                    is_verified=node.is_verified,
                )
            )
        # Vendors without other work begin at once.
        offers = tuple(replace(offer, load=0) for offer in task.vendors)
        search = Search(grid=grid, task=replace(task, vendors=offers), from_slot=task.arrival_slot)
        plan = search.find_plan(task.deadline_slot)
        return plan is not None and task.bid > self._rule.parts(plan.parts).total


def _bound_cost(options: Sequence[_Option], work: float, slots: int) -> tuple[float, float]:
    """Give what some work costs at least, and what it costs on one type; infinity: too slow."""
    counts = [math.ceil(work / rate * (1 - _MARGIN)) for rate, _ in options]
    most = min(
        (n * cost for n, (_, cost) in zip(counts, options, strict=True) if n <= slots),
        default=math.inf,
    )
    fewest = max(min(counts), 1)
    least = max(
        work * min(cost / rate for rate, cost in options),
        fewest * min(cost for _, cost in options),
    )
    return least, most


def select_counted(
    days: Sequence[Sequence[Task]], zone: EmptyZone, *, won: Collection[str] = frozenset()
) -> list[tuple[Task, ...]]:
    """Give the tasks of each day that count, in their order.

    Parameters
    ----------
    days : sequence of sequences of Task
        All that are read together, each in order of arrival. Days may overlap.
    zone : EmptyZone
    won : collection of str, optional
        Ids of tasks that were admitted and not refunded.

    Returns
    -------
    list of tuples of Task
        Of those that could be served all that won, and of the others as many as the work that
        was bought lets count (module). Tasks without an owner have one each.
    """
    bought: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for task in chain.from_iterable(days):
        if task.id in won:
            bought[_owner_of(task)][task.id] = task.compute_demand
    return [_select_of_day(day, zone, won, bought) for day in days]


def _select_of_day(
    day: Sequence[Task],
    zone: EmptyZone,
    won: Collection[str],
    bought: Mapping[str, Mapping[str, float]],
) -> tuple[Task, ...]:
    """Give the tasks of a day that count, by the work that each owner bought on any day read."""
    tasks = [task for task in day if zone.could_serve(task)]
    ids = {task.id for task in day}
    # What owners bought on this day who bought on no other.
    first = sum(sum(work.values()) for work in bought.values() if work.keys() <= ids)
    left = {owner: sum(work.values()) for owner, work in bought.items()}
    counted = [task.compute_demand for task in tasks if task.id in won]
    unbacked: list[int] = []
    for at, task in reversed(list(enumerate(tasks))):
        if task.id in won:
            continue
        if left.get(_owner_of(task), 0.0) >= task.compute_demand:
            left[_owner_of(task)] -= task.compute_demand
            counted.append(task.compute_demand)
        else:
            unbacked.append(at)
    room, kept = max(UNBACKED_SHARE * sum(counted), first), 0
    usual = median_high(counted or [task.compute_demand for task in tasks] or [0.0])
    shown = dict(enumerate(tasks))
    for at in unbacked:
        work = tasks[at].compute_demand
        if work <= room:
            room -= work
        elif kept < LEAST_UNBACKED:
            shown[at] = _shrink(tasks[at], usual)
        else:
            del shown[at]
            continue
        kept += 1
    return tuple(shown.values())


def _shrink(task: Task, most: float) -> Task:
    """Give a task with no more work than that, of which a sample is worth as much."""
    share = min(1.0, most / task.compute_demand)
    vendor = min((offer.price for offer in task.vendors), default=0.0)
    bid = vendor + (task.bid - vendor) * share
    return replace(task, compute_demand=task.compute_demand * share, bid=bid)


def _owner_of(task: Task) -> str:
    return task.owner or task.id


def take_charges_off(tasks: Sequence[Task], rules: ZoneRules) -> list[Task]:
    """Give tasks with their bids less the charges: what they may pay for cells and vendors."""
    kept, fee = 1.0 - rules.card_share - rules.tax_share, rules.fee_per_unit
    if kept == 1 and not fee:
        return list(tasks)
    return [replace(task, bid=task.bid * kept - fee * task.compute_demand) for task in tasks]
