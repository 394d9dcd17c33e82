"""Which bids count: those that an empty zone could serve, and refused work up to bought work.

Later prices are made of these bids alone: of their arrivals, prices, answers, work and rates. A bid
that no node could serve in time must move nothing. What an owner has won counts whole, since it has
paid for it. A job whose price was given back, because most of its work was never done, counts like
a refused bid.

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
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from statistics import median_high

from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import TOLERANCE
from scheduler.types import NodeSpec, Task

#: Room of an owner's refused bids that is backed, as a multiple of what it bought: one that wins a
#: bid in four is seen whole.
BACKED_TIMES = 3
#: Unbacked refused room that counts, as a share of the room won and backed; and the bids of a day
#: that always do, if not with all their work. A stretch has room for as many.
UNBACKED_SHARE, LEAST_UNBACKED = 1 / 9, 3
#: Of the capacity that asks something, the share that the low ask is one of.
LOW_SHARE = 0.1
#: Share by which sums may be off in their last digits.
_MARGIN = 1e-9
#: Rates of a task, its memory, and whether only verified nodes may run it.
_NeedsKey = tuple[tuple[tuple[str, float], ...], float, bool]


class EmptyZone:
    """A zone's nodes with nothing sold.

    Parameters
    ----------
    nodes : sequence of NodeSpec
        As registered: what is sold of them, and when they are on sale, is not looked at.
    base_memory : float
        GB that the base model takes on each.
    """

    def __init__(self, nodes: Sequence[NodeSpec], *, base_memory: float) -> None:
        self._nodes = [node for node in nodes if node.compute_capacity > 0]
        self._base_memory = base_memory
        self._fastest: dict[_NeedsKey, float] = {}

    @property
    def low_ask(self) -> float:
        """The ask for a sample that a tenth of the capacity asks at most; 0 where there is none.

        Capacity that asks nothing is left out. The lowest ask may be that of one slow node, which
        says nothing of what the others sell.
        """
        asking = sorted(
            (node.ask / node.compute_capacity, node.compute_capacity)
            for node in self._nodes
            if node.ask > 0
        )
        reached = list(accumulate(capacity for _, capacity in asking))
        return asking[bisect_left(reached, LOW_SHARE * reached[-1])][0] if asking else 0.0

    def could_serve(self, task: Task) -> bool:
        """Tell whether some node could do a task's work in time, if nothing were sold.

        Parameters
        ----------
        task : Task
            Its window may lie anywhere.
        """
        if not task.compute_demand > 0:
            return False
        delay = min((offer.delay_slots for offer in task.vendors), default=0)
        slots = task.deadline_slot - task.arrival_slot - delay + 1
        return slots * self._find_fastest(task) >= task.compute_demand * (1 - _MARGIN)

    def _find_fastest(self, task: Task) -> float:
        """Give the task's highest rate on nodes that can hold it; 0 where none can."""
        key = (tuple(sorted(task.rates.items())), task.memory_demand, task.verified_only)
        found = self._fastest.get(key)
        if found is None:
            able = {node.gpu_type for node in self._nodes if self._can_hold(node, task)}
            found = max((task.rates.get(name, 0.0) for name in able), default=0.0)
            self._fastest[key] = found
        return found

    def _can_hold(self, node: NodeSpec, task: Task) -> bool:
        free = node.memory_capacity - self._base_memory
        return (
            (node.is_verified or not task.verified_only)
            and task.rates.get(node.gpu_type, 0.0) <= node.compute_capacity * (1 + TOLERANCE)
            and free > 0
            and task.memory_demand <= free * (1 + TOLERANCE)
        )


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
    for task in sorted(refused, key=rank_bid):
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
        for each in sorted(waiting, key=rank_bid):
            charge = min(charges[each.id], most)
            if charge > room * (1 + _MARGIN):
                break
            room -= charge
            found[each.id] = _shrink(each, most)
        room, opened = min(room, usual), 0.0
        waiting.clear()
    room = fresh - sum(min(charges[name], most) for name in found)
    others = [task for task in day if task.id not in counts and task.id not in found]
    for task in sorted(others, key=rank_bid):
        room -= min(charges[task.id], most)
        fits = room >= -_MARGIN * fresh
        if not fits and len(found) >= LEAST_UNBACKED:
            break
        found[task.id] = _shrink(task, most if fits else usual)
    return found


def rank_bid(task: Task) -> bytes:
    """Give the place of a bid among others, which nobody who places bids can choose."""
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
    vendor = find_lowest_quote(task)
    bid = vendor + (task.bid - vendor) * share
    return replace(task, compute_demand=task.compute_demand * share, bid=bid)


def find_lowest_quote(task: Task) -> float:
    """Give what the cheapest vendor asks for a task's data; 0 where they need no work."""
    return min((offer.price for offer in task.vendors), default=0.0)


def _owner_of(task: Task) -> str:
    return task.owner or task.id


def take_charges_off(tasks: Sequence[Task], rules: ZoneRules) -> list[Task]:
    """Give decided bids with their prices less the charges: what is for cells and vendors."""
    kept, fee = 1.0 - rules.card_share - rules.tax_share, rules.fee_per_unit
    if kept == 1 and not fee:
        return list(tasks)
    return [replace(task, bid=task.bid * kept - fee * task.compute_demand) for task in tasks]
