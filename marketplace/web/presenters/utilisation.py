"""The market's heat map: nodes by slots, placed in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from marketplace.auction.selectors import NodeRow
from marketplace.common.money import format_usd
from marketplace.web.times import format_clock

#: More columns than this are joined into steps of several slots.
COLUMNS_MAX = 72
LEVELS = 9
#: Prices nearer together than this share of the highest do not use the whole scale.
SPAN_SHARE = 0.5
ROW_HEIGHT, ROW_GAP, TOP = 23, 3, 24


@dataclass(frozen=True, slots=True)
class HeatCell:
    x: str
    width: str
    #: ``h0`` to ``h8``, or ``hx`` where nothing is offered.
    css: str
    #: What the tooltip and the table say; empty where nothing is offered.
    title: str
    when: str
    price: str
    sold: str
    memory: str
    #: Share of memory sold, as a height.
    memory_share: str

    @property
    def facts(self) -> str:
        """What the page's script shows in the tooltip."""
        return "|".join((self.title, self.when, self.price, self.sold, self.memory))


@dataclass(frozen=True, slots=True)
class HeatRow:
    name: str
    gpu: str
    tier: str
    y: int
    middle: int
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class Heat:
    rows: tuple[HeatRow, ...]
    axis: tuple[tuple[str, str], ...]
    height: int
    row_height: int
    low: str
    high: str
    #: Slots in one column.
    step: int
    spoken: str

    @property
    def tiers(self) -> list[str]:
        """Those of the rows, in the rows' order."""
        return list(dict.fromkeys(row.tier for row in self.rows))


@dataclass(frozen=True, slots=True)
class HeatNode:
    name: str
    gpu: str
    tier: str
    compute_capacity: float


def build_heat(
    *,
    rows: Sequence[NodeRow],
    facts: Mapping[str, HeatNode],
    first_slot_at: datetime,
    slot_s: int,
    now: datetime,
    by: str = "price",
) -> Heat:
    """Nodes of a market as boxes.

    A cell's price is that of the whole slot of the node: its ask and the compute price of all its
    samples. ``by`` is ``price`` or ``sold``: what the fill means.
    """
    slots = min((len(row.on_sale) for row in rows), default=0)
    step = max(1, -(-slots // COLUMNS_MAX))
    columns = -(-slots // step)
    table = [_average_columns(row, facts[row.node_id], columns, step) for row in rows]
    prices = [cell[0] for row in table for cell in row if cell is not None]
    low, high = min(prices, default=0.0), max(prices, default=0.0)
    width = 100 / columns if columns else 100.0
    grid = _Grid(first_slot_at, slot_s * step, columns, now)

    heat_rows = []
    for index, (row, values) in enumerate(zip(rows, table, strict=True)):
        fact = facts[row.node_id]
        y = TOP + index * (ROW_HEIGHT + ROW_GAP)
        cells: list[HeatCell] = []
        for column, value in enumerate(values):
            x, box = f"{column * width:.3f}%", f"{width * 0.9:.3f}%"
            if value is None:
                cells.append(HeatCell(x, box, "hx", "", "", "", "", "", "0"))
                continue
            share = value[1] if by == "sold" else _share(value[0], low, high)
            cells.append(_fill_cell(x, box, fact, grid.describe(column), value, share))
        heat_rows.append(
            HeatRow(
                name=fact.name,
                gpu=fact.gpu,
                tier=fact.tier,
                y=y,
                middle=y + ROW_HEIGHT // 2 + 4,
                cells=tuple(cells),
            )
        )
    return Heat(
        rows=tuple(heat_rows),
        axis=grid.list_labels(width),
        height=TOP + len(rows) * (ROW_HEIGHT + ROW_GAP) + 6,
        row_height=ROW_HEIGHT,
        low=format_usd(round(low)),
        high=format_usd(round(high)),
        step=step,
        spoken=f"{len(rows)} nodes over the next {columns * step} slots; a whole slot costs from "
        f"{format_usd(round(low))} to {format_usd(round(high))}.",
    )


#: Price, share of compute sold and share of memory sold.
_Average = tuple[float, float, float]


def _fill_cell(
    x: str, width: str, node: HeatNode, when: str, value: _Average, share: float
) -> HeatCell:
    price, sold, memory = value
    return HeatCell(
        x=x,
        width=width,
        css=f"h{min(LEVELS - 1, int(share * LEVELS))}",
        title=f"{node.name}, {node.gpu}",
        when=when,
        price=format_usd(round(price)),
        sold=f"{sold:.0%}".replace("%", " %"),
        memory=f"{memory:.0%}".replace("%", " %"),
        memory_share=f"{memory:.3f}",
    )


@dataclass(frozen=True, slots=True)
class _Grid:
    """The columns of a heat map in time."""

    first_at: datetime
    column_s: int
    columns: int
    now: datetime

    @property
    def seconds(self) -> bool:
        """Whether times are shown to the second."""
        return self.column_s * self.columns < 3600

    def describe(self, column: int) -> str:
        """A column's begin and end."""
        starts_at = self.first_at + timedelta(seconds=self.column_s * column)
        ends_at = starts_at + timedelta(seconds=self.column_s)
        start = format_clock(starts_at, self.now, seconds=self.seconds)
        return f"{start} to {format_clock(ends_at, ends_at, seconds=self.seconds)}"

    def list_labels(self, width: float) -> tuple[tuple[str, str], ...]:
        """Where the axis has labels, in percent, and what they say."""
        every = max(1, self.columns // 12)
        labels: list[tuple[str, str]] = []
        for column in range(0, self.columns, every):
            # "Now 09:00:00" takes the room of two.
            has_room = self.columns - column >= every / 2 and (column > every or not self.seconds)
            if column == 0 or has_room:
                at = self.first_at + timedelta(seconds=self.column_s * column)
                text = format_clock(at, at, seconds=self.seconds)
                labels.append((f"{column * width:.3f}%", text))
        return tuple(labels)


def _average_columns(
    row: NodeRow, facts: HeatNode, columns: int, step: int
) -> list[_Average | None]:
    """Price, sold compute and sold memory of each column; ``None`` where nothing is offered."""
    out: list[_Average | None] = []
    for column in range(columns):
        offered = [
            slot
            for slot in range(column * step, min((column + 1) * step, len(row.on_sale)))
            if row.on_sale[slot]
        ]
        if not offered:
            out.append(None)
            continue
        mean = [
            sum(values[slot] for slot in offered) / len(offered)
            for values in (row.compute_price, row.compute_sold, row.memory_sold)
        ]
        price = row.ask_micros + mean[0] * facts.compute_capacity
        out.append((price, min(1.0, mean[1]), min(1.0, mean[2])))
    return out


def _share(price: float, low: float, high: float) -> float:
    """A little more contrast among the cheap cells, where most of them are."""
    span = max(high - low, SPAN_SHARE * high)
    return 0.0 if span <= 0 else ((price - low) / span) ** 0.65
