"""Day-ahead posted rates: what a sample earns a provider, taken or left.

A provider that is paid its own ask gains by asking more. Here the rate of a sample comes from the
others' asks and from past days' bids, never from the provider's own ask. The ask only decides
whether the provider accepts the rate. The rate is the reserve in the buyer's price and what an
executed sample earns, so buyers pay at least what providers get, cell by cell.

The *reference ask* of a provider and GPU type is the median of its peers' asks; its nodes' *floor*
is a little above it. For each block of the day the rate is the price that past days' bids would
have paid for the provider's cells if its nodes had asked the reference. It is never below the
floor. A solve in the day may lower it towards the floor, by what a sample would cost if every node
asked its floor; it cannot raise it.

References
----------
R. Preston McAfee, "A dominant strategy double auction", Journal of Economic Theory 56
(1992) 434-450, takes trades at a price that the traders themselves do not set. S. Chawla,
J. Hartline and R. Kleinberg, "Algorithmic pricing via virtual valuations", EC 2007, post
prices made of earlier samples. The rule is ours: a price by block of a day, from hindsight
prices of past days with the provider's own ask left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np

from scheduler.auction.prices.capacity import Supply, make_capacity
from scheduler.auction.prices.counted_bids import EmptyZone, select_counted
from scheduler.auction.prices.demand_response import Demand
from scheduler.auction.prices.descent import descend
from scheduler.auction.prices.type_pools import pool_by_type
from scheduler.auction.prices.worths import estimate_worths
from scheduler.auction.search.grid import Floats
from scheduler.types import NodeRate, NodeSpec, Task

#: Other providers of a GPU type from which on they alone are a provider's peers.
FEWEST_PEERS = 2


@dataclass(frozen=True, slots=True)
class RateSettings:
    """Parameters of the posted rates; a zone may set them."""

    #: Slots of one block; a rate stands for a block.
    block_slots: int = 8
    #: Floor over the reference ask.
    floor_markup: float = 1.25
    #: Highest ask that sells at its own ask while no past day is known, over the reference.
    overflow: float = 2.0
    #: Largest share of its type that a provider may have to sell so.
    most_overflow_share: float = 0.4
    #: Steps of the descent for each past day and provider.
    iterations: int = 40


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A node as its provider registered it; its availability does not count here."""

    node: NodeSpec
    #: Nodes of one provider name the same.
    provider: str

    @property
    def ask(self) -> float:
        """The ask per sample."""
        node = self.node
        return node.ask / node.compute_capacity if node.compute_capacity > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RateTerms:
    """What a zone fixes for all of its rates of a day."""

    #: Slots of a day.
    day_slots: int
    #: r_b, GB that the base model takes of every node.
    base_memory: float
    #: Money per sample, set by the operator: stands in for the peers' median where a provider is
    #: alone in the zone.
    reference: float | None = None
    #: Money per sample up to which a provider alone in the zone sells at its own ask where no
    #: ``reference`` is set.
    cap: float = np.inf
    settings: RateSettings = RateSettings()


def post_rates(
    nodes: Sequence[RegisteredNode],
    past_days: Sequence[Sequence[Task]],
    terms: RateTerms,
    *,
    won: Collection[str] = frozenset(),
) -> dict[str, NodeRate]:
    """Give every node's rate for the coming day.

    Pure. A provider's own asks and availability have no part in its own rates.

    Parameters
    ----------
    nodes : sequence of RegisteredNode
        All of the zone, on sale at present or not.
    past_days : sequence of sequences of Task
        Decided bids of whole past days as ``show_outcome`` gives them, slots counted from the start
        of the day; those count that ``select_counted`` gives.
    terms : RateTerms
    won : collection of str, optional
        Ids of those bids that were admitted; as for ``select_counted``.

    Returns
    -------
    dict of NodeRate by node id
        Money per sample.
    """
    chosen = terms.settings
    references = find_reference_asks(nodes, reference=terms.reference)
    blocks = np.arange(0, terms.day_slots, chosen.block_slots)
    width = np.diff(np.append(blocks, terms.day_slots))
    worth: dict[tuple[str, str], Floats] = {}
    for provider in dict.fromkeys(each.provider for each in nodes) if past_days else ():
        known = {g: ask for (p, g), ask in references.items() if p == provider and ask is not None}
        if not known:
            continue
        asking = _register(nodes, provider, known)
        empty = EmptyZone(asking, base_memory=terms.base_memory)
        counted = select_counted(past_days, empty, won=won)
        worths = estimate_worths(chain.from_iterable(counted), won=won, low_ask=empty.low_ask)
        days = [worths.assign(day) for day in counted]
        supply = make_capacity(
            asking, base_memory=terms.base_memory, first_slot=0, slots=terms.day_slots
        )
        for kind, row in _find_worth(supply, days, iterations=chosen.iterations).items():
            worth[provider, kind] = np.add.reduceat(row, blocks) / width
    found: dict[str, NodeRate] = {}
    for each in nodes:
        key = each.provider, each.node.gpu_type
        middle = references[key]
        if middle is None:
            # Alone and without a reference: paid as asked, up to a published cap.
            floor = rate = min(each.ask, terms.cap)
        elif key in worth:
            floor = chosen.floor_markup * middle
            rate = np.maximum(worth[key], floor)
        else:
            floor = rate = _find_first_rate(each, nodes, middle, chosen)
        rates = np.broadcast_to(rate, blocks.shape)
        found[each.node.id] = NodeRate(each.ask, floor, tuple(rates.tolist()))
    return found


def find_joined_rates(
    joined: Sequence[RegisteredNode],
    registered: Sequence[RegisteredNode],
    rates: Mapping[str, NodeRate],
    terms: RateTerms,
    *,
    knows_days: bool,
) -> dict[str, NodeRate]:
    """Give the rates of nodes that join after the day's rates were posted.

    Where those come from past days, a node gets what its provider's other nodes of the type
    have, and a new provider's node its floor: to leave and join again, or under another name,
    earns no more than to stay. On a first day it gets what it would have got in the morning.

    Parameters
    ----------
    joined, registered : sequence of RegisteredNode
        Those that come now, and all that came before.
    rates : mapping of NodeRate by node id
        Of those before.
    terms : RateTerms
    knows_days : bool
        Whether the day's rates were made from past days.

    Returns
    -------
    dict of NodeRate by node id
    """
    if knows_days:
        # Nothing sells above its floor at its own ask.
        terms = replace(terms, settings=replace(terms.settings, overflow=0.0))
    found = post_rates([*registered, *joined], [], terms)
    given = {each.node.id: found[each.node.id] for each in joined}
    for each in joined if knows_days else ():
        for other in registered:
            alike = other.node.gpu_type == each.node.gpu_type
            if other.provider == each.provider and alike and other.node.id in rates:
                given[each.node.id] = replace(rates[other.node.id], ask=each.ask)
                break
    return given


def find_reference_asks(
    nodes: Sequence[RegisteredNode], *, reference: float | None = None
) -> dict[tuple[str, str], float | None]:
    """Give m_P, the capacity-weighted median of the peers' asks, by provider and GPU type.

    Peers are the other providers of the type, or of the whole zone where there are fewer
    than ``FEWEST_PEERS``. Capacities are counted in samples, so asks per sample of two
    types compare as they are.

    Parameters
    ----------
    nodes : sequence of RegisteredNode
    reference : float, optional
        Used where a provider has no peer; ``None`` is given there without.

    Returns
    -------
    dict of float or None by provider and GPU type
        Money per sample.
    """
    found: dict[tuple[str, str], float | None] = {}
    for each in nodes:
        key = each.provider, each.node.gpu_type
        if key in found:
            continue
        others = [n for n in nodes if n.provider != each.provider]
        alike = [n for n in others if n.node.gpu_type == each.node.gpu_type]
        peers = alike if len({n.provider for n in alike}) >= FEWEST_PEERS else others
        found[key] = _find_median(peers) if peers else reference
    return found


def _find_median(nodes: Sequence[RegisteredNode]) -> float:
    """Give the lowest ask that half of the capacity asks at most."""
    ranked = sorted(nodes, key=lambda n: n.ask)
    reached = list(accumulate(n.node.compute_capacity for n in ranked))
    return ranked[bisect_left(reached, reached[-1] / 2)].ask


def _find_first_rate(
    each: RegisteredNode, nodes: Sequence[RegisteredNode], middle: float, settings: RateSettings
) -> float:
    """Give a node's rate while no past day is known.

    Nodes that ask more than the floor sell at their own ask, up to ``overflow`` times the
    reference. They do not if their provider has so much of the type that its ask would set the
    price.
    """
    floor = settings.floor_markup * middle
    alike = [n for n in nodes if n.node.gpu_type == each.node.gpu_type]
    total = sum(n.node.compute_capacity for n in alike)
    own = sum(n.node.compute_capacity for n in alike if n.provider == each.provider)
    if own > settings.most_overflow_share * total or each.ask > settings.overflow * middle:
        return floor
    return max(floor, each.ask)


def _register(
    nodes: Sequence[RegisteredNode],
    provider: str,
    references: Mapping[str, float],
) -> list[NodeSpec]:
    """Give all registered nodes, a provider's own at its reference asks.

    Availability is left out, so that holding cells back raises no rate.
    """
    asked: list[NodeSpec] = []
    for each in nodes:
        node = replace(each.node, available_from=None, available_until=None)
        if each.provider == provider:
            # Without a reference its own nodes take no part in what it is paid.
            own = references.get(node.gpu_type, 0.0)
            node = replace(node, ask=own * node.compute_capacity)
        asked.append(node)
    return asked


def _find_worth(
    supply: Supply, past_days: Sequence[Sequence[Task]], *, iterations: int
) -> dict[str, Floats]:
    """Give what a sample of each type was worth on past days, by slot of the day.

    That is its price, asks included, and the price of the memory which goes with it.
    """
    pools, _ = pool_by_type(supply)
    total = np.zeros(pools.compute.shape)
    for day in past_days:
        total += pools.ask
        if day:
            _, mean = descend(pools, Demand(day, pools), iterations=iterations)
            total += mean.compute_price + mean.memory_price * pools.memory_per_sample
    return {kind: total[:, g] / len(past_days) for g, kind in enumerate(pools.types)}
