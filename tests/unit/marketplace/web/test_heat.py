"""The heat map: what a whole slot costs, by node and time."""

from __future__ import annotations

from marketplace.auction.selectors import NodeRow
from marketplace.web.presenters.utilisation import COLUMNS_MAX, Heat, HeatNode, build_heat
from tests.builders import NOW


def row(*, slots: int, price: float = 0.0, off: tuple[int, ...] = (), **more) -> NodeRow:
    fields = {
        "node_id": "n",
        "name": "n",
        "gpu_type": "A100",
        "compute_price": (price,) * slots,
        "memory_price": (0.0,) * slots,
        "compute_sold": (0.25,) * slots,
        "memory_sold": (0.5,) * slots,
        "on_sale": tuple(slot not in off for slot in range(slots)),
        "ask_micros": 200_000,
    }
    return NodeRow(**fields | more)


def heat(*rows: NodeRow, by: str = "price") -> Heat:
    facts = {r.node_id: HeatNode(r.node_id, "A100", "marketplace", 400.0) for r in rows}
    return build_heat(rows=rows, facts=facts, first_slot_at=NOW, slot_s=600, now=NOW, by=by)


def test_a_cell_costs_the_ask_and_the_compute_price_of_all_its_samples() -> None:
    drawn = heat(row(slots=4, price=500.0), row(slots=4, node_id="m"))
    first, second = (r.cells[0] for r in drawn.rows)
    assert (first.price, second.price) == ("$0.40", "$0.20")
    assert (first.css, second.css) == ("h8", "h0")
    assert (first.when, first.sold, first.memory) == ("09:00:00 to 09:10:00", "25 %", "50 %")
    assert (drawn.low, drawn.high) == ("$0.20", "$0.40")


def test_slots_that_are_not_offered_are_grey_and_say_nothing() -> None:
    drawn = heat(row(slots=4, off=(1,)))
    assert [cell.css for cell in drawn.rows[0].cells] == ["h0", "hx", "h0", "h0"]
    assert drawn.rows[0].cells[1].title == ""


def test_a_long_horizon_is_joined_into_steps() -> None:
    drawn = heat(row(slots=360))
    assert drawn.step == 5
    assert len(drawn.rows[0].cells) == COLUMNS_MAX
    assert drawn.rows[0].cells[0].when == "09:00 to 09:50"


def test_a_providers_map_is_filled_by_what_is_sold() -> None:
    assert heat(row(slots=2), by="sold").rows[0].cells[0].css == "h2"


def test_no_nodes_make_an_empty_map() -> None:
    assert heat().rows == ()
