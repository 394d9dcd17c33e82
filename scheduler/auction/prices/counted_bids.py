"""Which bids count: those that could win in an empty zone, and refused work up to bought work.

Later prices are made of these bids alone: of their arrivals, worths, work and rates. A bid that
could not win even in an empty zone costs its owner nothing, so it must move nothing. What an owner
has won counts whole, since it has paid for it. A job whose price was given back, because most of
its work was never done, counts like a refused bid.

To lose is free, so refused bids count up to what purchases let count. *Room* is a bid's work in
whole slots, as they are paid for; the *usual* room is the median of the bids that won. A refused
bid is charged no less than that: a forecast counts bids, and many small ones must not weigh more
than one. An owner's are *backed* up to three times the room that it bought, over all days that are
read together: an owner that wins a bid in four is seen whole. The others count up to a ninth of the
room that counts in the same stretch of a day (a tenth of all). If that is more, they count up to
the room bought on a day by owners who bought on no other, less what it backs of their own: where
everybody is new nothing tells a flood from demand. Three always count in a day, with the usual room
at most, and none with more than three times that: a giant that loses must not hide what others ask
for. Without this bound a flood of bids just below the price would raise it, under however many
names.

Which of them count follows from hashes of their ids, which the market draws. So those that count
lie in time as all of them do, the end of one day can be held against the beginning of another, and
to bid sooner or later changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median_high

from scheduler.auction.engine.payment import PaymentRule
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import TOLERANCE, Grid
from scheduler.auction.search.task_search import Search
from scheduler.types import Horizon, LaborVendor, NodeSpec, Task

#: Room of an owner's refused bids that is backed, as a multiple of what it bought: one that wins a
#: bid in four is seen whole.
BACKED_TIMES = 3
#: Unbacked refused room that counts, as a share of the room won and backed; and the bids of a day
#: that always do, if not with all their work. A stretch has room for as many.
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
        All that are read together, each in order of arrival. Days may overlap: a task has the same
        id in each of them.
    zone : EmptyZone
    won : collection of str, optional
        Ids of tasks that were admitted and not refunded.

    Returns
    -------
    list of tuples of Task
        Of those that could be served all that won, and of the others as many as the room that
        was bought lets count (module). Tasks without an owner have one each.
    """
    known = {task.id: task for task in chain.from_iterable(days)}
    able = {task.id: task for task in known.values() if zone.could_serve(task)}
    bought: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for task in known.values():
        if task.id in won:
            bought[_owner_of(task)][task.id] = _find_room(task)
    usual = median_high(
        [_find_room(task) for task in able.values() if task.id in won]
        or [_find_room(task) for task in able.values()]
        or [0.0]
    )
    charges = {
        task.id: _find_room(task) if task.id in won else max(_find_room(task), usual)
        for task in able.values()
    }
    own = {owner: sum(each.values()) for owner, each in bought.items()}
    left = {owner: BACKED_TIMES * room for owner, room in own.items()}
    refused = [task for task in able.values() if task.id not in won]
    counts = {*_find_backed(refused, charges, left), *(name for name in able if name in won)}
    found: list[tuple[Task, ...]] = []
    for day in days:
        ids = {task.id for task in day}
        # What owners bought on this day who bought on no other, less what it backs of their own.
        fresh = sum(
            max(left[owner] - (BACKED_TIMES - 1) * own[owner], 0.0)
            for owner, each in bought.items()
            if each.keys() <= ids
        )
        shown = _find_unbacked(
            [task for task in day if task.id in able], counts, charges, fresh=fresh, usual=usual
        )
        tasks = (shown.get(task.id, task) for task in day)
        found.append(tuple(task for task in tasks if task.id in counts or task.id in shown))
    return found


def _find_backed(
    refused: Sequence[Task], charges: Mapping[str, float], left: dict[str, float]
) -> Iterator[str]:
    """Give the ids of refused bids that are backed, and take their room off what owners have."""
    closed: set[str] = set()
    for task in sorted(refused, key=_rank):
        owner, charge = _owner_of(task), charges[task.id]
        if owner in closed or left.get(owner, 0.0) * (1 + _MARGIN) < charge:
            # Smaller ones that come later do not pass it: sizes have no part in the choice.
            closed.add(owner)
        else:
            left[owner] -= charge
            yield task.id


def _find_unbacked(
    day: Sequence[Task],
    counts: Collection[str],
    charges: Mapping[str, float],
    *,
    fresh: float,
    usual: float,
) -> dict[str, Task]:
    """Give by id those of a day's other refused bids that count, as they count."""
    found: dict[str, Task] = {}
    waiting: list[Task] = []
    most = LEAST_UNBACKED * usual
    room = opened = 0.0
    for at, task in enumerate(day, start=1):
        if task.id in counts:
            room += UNBACKED_SHARE * charges[task.id]
            opened += UNBACKED_SHARE * charges[task.id]
        else:
            waiting.append(task)
        if opened * (1 + _MARGIN) < most and at < len(day):
            continue
        # A stretch ends: what is left of its room serves one later bid at most.
        for each in sorted(waiting, key=_rank):
            charge = min(charges[each.id], most)
            if charge > room * (1 + _MARGIN):
                break
            room -= charge
            found[each.id] = _shrink(each, most)
        room, opened = min(room, usual), 0.0
        waiting.clear()
    room = fresh - sum(min(charges[name], most) for name in found)
    others = [task for task in day if task.id not in counts and task.id not in found]
    for task in sorted(others, key=_rank):
        room -= min(charges[task.id], most)
        fits = room >= -_MARGIN * fresh
        if not fits and len(found) >= LEAST_UNBACKED:
            break
        found[task.id] = _shrink(task, most if fits else usual)
    return found


def _rank(task: Task) -> bytes:
    """Give the place of a bid among refused ones, which nobody who places bids can choose."""
    return hashlib.sha256(task.id.encode()).digest()


def _find_room(task: Task) -> float:
    """Give a task's work in whole slots, in samples, on the type where these are the fewest."""
    return min(
        (
            max(math.ceil(task.compute_demand / rate * (1 - _MARGIN)), 1) * rate
            for rate in task.rates.values()
            if rate > 0 and task.compute_demand / rate < math.inf
        ),
        default=task.compute_demand,
    )


def _shrink(task: Task, most: float) -> Task:
    """Give a task with no more work than that, of which a sample is worth as much."""
    share = most / task.compute_demand
    if share >= 1.0:
        return task
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
