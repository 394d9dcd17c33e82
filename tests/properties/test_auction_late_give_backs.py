"""The rent of cells that are given back late: no more goes back than others pay for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.auction.log import events
from scheduler.auction.log.outcomes import GridChange, ReleasedCells
from scheduler.types import Decision
from tests.properties.auction_markets import Market
from tests.properties.test_lagrangian_policy import SolvedMarket


def give_back_late(market: Market) -> tuple[str, ReleasedCells]:
    """Have an owner buy a job and give it back at once, before its first slot."""
    engine = market.engine
    for _ in range(30):
        bid = market.bid()
        bid = replace(bid, task=replace(bid.task, arrival_slot=market.slot + 1, bid=1e9))
        decision = engine.transition(bid)
        assert isinstance(decision, Decision)
        if decision.admitted:
            break
    assume(decision.admitted)
    assert decision.schedule is not None
    assert decision.parts is not None
    rest = replace(bid.task, bid=0.0, vendors=(), owner="")
    paid = int(decision.payment - decision.parts.vendor)
    back = engine.transition(
        events.CellsReleased(bid.task.id, decision.schedule.cells, rest=rest, paid=paid)
    )
    assert isinstance(back, ReleasedCells)
    return bid.task.id, back


def count_rents(
    market: Market, task_id: str, sales: list[int], paid_shares: Sequence[float | None] = ()
) -> tuple[Counter[str], float]:
    """Let bids come, then slots begin; what waited and went back, and what the buyers pay.

    A buyer that has a share ends at once, and so much of its price stays paid.
    """
    shares = iter(paid_shares)
    engine, sums, paid = market.engine, Counter[str](), 0.0
    for bids in (*sales, *(0 for _ in range(engine.horizon.slots))):
        for _ in range(bids):
            decision = engine.transition(market.bid())
            assert isinstance(decision, Decision)
            if decision.admitted:
                assert decision.parts is not None
                assert decision.schedule is not None
                share = next(shares, None)
                if share is not None:
                    cells = decision.schedule.cells
                    engine.transition(
                        events.CellsReleased(decision.task_id, cells, paid_share=share)
                    )
                rent = decision.parts.compute + decision.parts.memory
                paid += rent * (1.0 if share is None else share)
        market.slot += 1
        changed = engine.transition(events.SlotAdvanced(market.slot))
        assert isinstance(changed, GridChange)
        for one in changed.sold_again:
            if one.task_id == task_id:
                assert 0 <= one.rent <= one.waited
                assert one.unsold >= 0
                sums["waited"] += one.waited
                sums["back"] += one.rent
                sums["cells"] += 1
    return sums, paid


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    before=st.integers(0, 40),
    sales=st.lists(st.integers(0, 3), max_size=5),
    paid_shares=st.lists(st.none() | st.floats(0.0, 1.0), max_size=5),
)
def test_no_more_rent_goes_back_than_those_pay_who_buy_the_cells(
    seed: int, before: int, sales: list[int], paid_shares: list[float | None]
) -> None:
    market = SolvedMarket(seed)
    market.run(before)
    task_id, back = give_back_late(market)
    sums, paid = count_rents(market, task_id, sales, paid_shares)
    # The log says once of each cell what becomes of it, and of all that waits.
    assert sums["waited"] == back.waits
    assert sums["back"] <= paid + 1e-6


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), before=st.integers(0, 40))
def test_blocking_cells_that_nobody_buys_again_costs_their_rent(seed: int, before: int) -> None:
    market = SolvedMarket(seed)
    market.run(before)
    task_id, back = give_back_late(market)
    sums, _ = count_rents(market, task_id, [])
    assert (sums["waited"], sums["back"]) == (back.waits, 0)
