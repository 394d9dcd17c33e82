"""What a provider's nodes are paid by block of the day, and why they sell or not.

Nothing of another provider is in it: a node's own rates and floor are in the log's entry for it,
and whether it sells follows from them and from its own ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby

from marketplace.auction.book import engine_cache as books
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import slot_ends_at, slot_starts_at
from scheduler.auction import Prices
from scheduler.auction.log.events import RatesPosted
from scheduler.types import NodeRate


class RateState(StrEnum):
    """Why a node sells in a block, or does not."""

    ON_SALE = "on sale"
    #: In some of its slots; in the others the last solve has lowered the rate below the ask.
    PARTLY = "partly on sale"
    #: The ask is above the day-ahead rate.
    ASK_ABOVE_RATE = "ask above rate"
    #: The ask is not above the day-ahead rate, but above what the last solve lowered it to.
    LOWERED = "rate lowered"
    #: The provider does not offer the node then.
    NOT_OFFERED = "not offered"


@dataclass(frozen=True, slots=True)
class RateBlock:
    """One block of the day; amounts are micro-dollars for a whole slot of the node."""

    starts_at: datetime
    ends_at: datetime
    day_ahead_micros: int
    #: The least in force in slots on sale; ``None`` where none is.
    in_force_micros: int | None
    state: RateState


@dataclass(frozen=True, slots=True)
class NodeRates:
    """One node's rates over the slots on sale."""

    node: Node
    #: As it was when rates were posted; what is asked since counts from the next day on.
    ask_micros: int
    #: No solve lowers a rate further.
    floor_micros: int
    blocks: tuple[RateBlock, ...]

    @property
    def band_micros(self) -> tuple[int, int]:
        """The lowest and highest day-ahead rate."""
        rates = [block.day_ahead_micros for block in self.blocks]
        return min(rates), max(rates)

    @property
    def sells_in_all(self) -> bool:
        """Whether an ask at the floor is what it has: that sells in every block."""
        return self.ask_micros <= self.floor_micros


def load_node_rates(*, zone: Zone, nodes: Sequence[Node], now: datetime) -> list[NodeRates]:
    """Rates of those nodes that have any; none where asks are paid or no rates are posted."""
    with books.read_book(zone=zone, now=now) as book:
        posted = book.engine.posted_rates
        if posted is None:
            return []
        prices = book.engine.prices()
        capacities = {node.id: node.compute_capacity for node in book.engine.nodes}
    columns = {node_id: k for k, node_id in enumerate(prices.node_ids)}
    return [
        NodeRates(
            node=node,
            ask_micros=round(posted.rates[node.pk].ask * capacities[node.pk]),
            floor_micros=round(posted.rates[node.pk].floor * capacities[node.pk]),
            blocks=_list_blocks(
                zone, posted, posted.rates[node.pk], prices, columns[node.pk], capacities[node.pk]
            ),
        )
        for node in nodes
        if node.pk in posted.rates and node.pk in columns
    ]


def _list_blocks(
    zone: Zone, posted: RatesPosted, rate: NodeRate, prices: Prices, column: int, capacity: float
) -> tuple[RateBlock, ...]:
    slots = range(prices.first_slot, prices.first_slot + prices.on_sale.shape[1])

    def find_block(slot: int) -> tuple[int, int]:
        """The day, and the block of it."""
        day, since = divmod(slot - posted.first_slot, posted.day_slots)
        return day, since // posted.block_slots

    blocks: list[RateBlock] = []
    for (_, block), together in groupby(slots, key=find_block):
        of_block = list(together)
        rows = [slot - prices.first_slot for slot in of_block]
        offered = [row for row in rows if prices.is_available[column, row]]
        sold = [row for row in rows if prices.on_sale[column, row]]
        day_ahead = rate.by_block[block]
        in_force = min((float(prices.reserve_price[column, row]) for row in sold), default=None)
        blocks.append(
            RateBlock(
                starts_at=slot_starts_at(zone, of_block[0]),
                ends_at=slot_ends_at(zone, of_block[-1]),
                day_ahead_micros=round(day_ahead * capacity),
                in_force_micros=None if in_force is None else round(in_force * capacity),
                state=_find_state(rate, day_ahead, offered=len(offered), sold=len(sold)),
            )
        )
    return tuple(blocks)


def _find_state(rate: NodeRate, day_ahead: float, *, offered: int, sold: int) -> RateState:
    if not offered:
        return RateState.NOT_OFFERED
    if sold:
        return RateState.ON_SALE if sold == offered else RateState.PARTLY
    return RateState.ASK_ABOVE_RATE if rate.ask > day_ahead else RateState.LOWERED
