"""Which bids count: those that could win in an empty zone, and of one owner not too many.

Later prices are made of these bids alone: of their arrivals, worths, work and rates. A
bid that could not win even in an empty zone costs its owner nothing, so it must move nothing.
What an owner has won counts whole, since it has paid for it. A job whose price was given back,
because most of its work was never done, counts like a refused bid. Of an owner's refused bids
count as many as it has won, or a share of all others' bids, or as many as the median other owner
has, whichever is most. Without this bound a flood of bids just below the price would raise it.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from scheduler.auction.engine.payment import PaymentRule
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import TOLERANCE, Grid
from scheduler.auction.search.task_search import Search
from scheduler.types import Horizon, LaborVendor, NodeSpec, Task

#: Refused bids of one owner that count in a day: as a share of all others' bids, and always.
MOST_SHARE, LEAST_MOST = 0.1, 3
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
    tasks: Sequence[Task], zone: EmptyZone, *, won: Collection[str] = frozenset()
) -> tuple[Task, ...]:
    """Give the tasks of one day that count, in their order.

    Parameters
    ----------
    tasks : sequence of Task
        In order of arrival.
    zone : EmptyZone
    won : collection of str, optional
        Ids of tasks that were admitted and not refunded.

    Returns
    -------
    tuple of Task
        Of those that could be served all that won, and of the others of each owner the
        latest, as many as have won or as ``find_most`` says. Tasks without an owner have
        one each.
    """
    able = [task for task in tasks if zone.could_serve(task)]
    number = Counter(task.owner for task in able if task.owner)
    wins = Counter(task.owner for task in able if task.owner and task.id in won)
    alone = len(able) - number.total()
    left = {
        owner: max(
            wins[owner],
            find_most(sorted([*(number - Counter({owner: count})).values(), *[1] * alone])),
        )
        for owner, count in number.items()
        if count - wins[owner] > LEAST_MOST
    }
    return tuple(reversed(list(_keep_latest(able, left, won)))) if left else tuple(able)


def take_charges_off(tasks: Sequence[Task], rules: ZoneRules) -> list[Task]:
    """Give tasks with their bids less the charges: what they may pay for cells and vendors."""
    kept, fee = 1.0 - rules.card_share - rules.tax_share, rules.fee_per_unit
    if kept == 1 and not fee:
        return list(tasks)
    return [replace(task, bid=task.bid * kept - fee * task.compute_demand) for task in tasks]


def find_most(others: Sequence[int]) -> int:
    """Give how many refused bids of an owner count, from the rising numbers of others' bids.

    The tenth is what a flood may be in a market of many owners. Where there are few, one
    owner in the ordinary has more than a tenth, so as many count as the middle one of the
    others has; and where there is no other, all do, since no one else's price is at stake.
    """
    if not others:
        return sys.maxsize
    middle = others[(len(others) - 1) // 2]
    return max(LEAST_MOST, math.floor(MOST_SHARE * sum(others)), middle)


def _keep_latest(
    tasks: Sequence[Task], left: dict[str, int], won: Collection[str]
) -> Iterator[Task]:
    """Give the tasks that count, the latest first; of owners not named all do."""
    for task in reversed(tasks):
        if task.owner in left and task.id not in won:
            if left[task.owner] == 0:
                continue
            left[task.owner] -= 1
        yield task
