"""The rule of pay, as arithmetic and as the text that everybody is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from marketplace.auction.give_backs import UndoneWork
from marketplace.auction.pay_rule import (
    EXPRESS_LEAST_PERCENT,
    PAY_RULE,
    Ending,
    HouseLimits,
    Settlement,
    SoldJob,
    compute_asks,
    compute_settlement,
    compute_spared,
    cut_asks,
    find_express_refund,
)
from marketplace.jobs.executed_work import ExecutedWork, NodeWork

ROOT = Path(__file__).parents[4]
SOLD = SoldJob(owner_id="owner", payment_micros=1_000, asks_micros=601, credit_percent=25)
NO_LIMITS = HouseLimits()
EXPRESS = SoldJob(
    owner_id="owner",
    payment_micros=1_000,
    asks_micros=0,
    least_percent=EXPRESS_LEAST_PERCENT,
)


def pay(
    *units: int,
    ending: Ending,
    of: int = 100,
    at_fault: tuple[str, ...] = (),
    limit: int | None = None,
    rates: dict[str, Fraction] | None = None,
    overrun: Fraction = Fraction(0),
    left: Mapping[str, int] = {},
    vendor: int = 0,
    is_own_vendor: bool = False,
) -> Settlement:
    """A job of 1,000 micro-dollars, 601 of them asks; node ``n`` belongs to ``org_n``."""
    nodes = tuple(NodeWork(f"node_{n}", f"org_{n}", 1, done) for n, done in enumerate(units))
    blamed = at_fault[-1] if at_fault else "nobody"
    return compute_settlement(
        sold=replace(SOLD, posted_rates=rates, vendor_micros=vendor, is_own_vendor=is_own_vendor),
        work=ExecutedWork(nodes, min(Fraction(1), Fraction(sum(units), of)), overrun),
        ending=ending,
        at_fault=at_fault,
        limits=HouseLimits(
            left_micros=left if limit is None else {**left, blamed: limit},
            at_fault_id=None if limit is None else blamed,
        ),
    )


def paid(due: Settlement) -> list[int]:
    return [node.paid_micros for node in due.nodes]


def test_a_job_in_time_pays_its_executors_all_of_the_asks() -> None:
    due = pay(1, 99, ending=Ending.IN_TIME)
    assert paid(due) == [6, 595]
    assert (due.refund_micros, due.credit_micros, due.asks_returned_micros) == (0, 0, 0)


def test_steps_count_at_the_posted_rate_of_their_cells() -> None:
    due = pay(50, 50, ending=Ending.IN_TIME, rates={"node_0": Fraction(1), "node_1": Fraction(2)})
    assert paid(due) == [200, 401]
    # A node without cells of its own counts at the mean of those that had some.
    due = pay(50, 50, ending=Ending.IN_TIME, rates={"node_0": Fraction(3, 2)})
    assert paid(due) == [301, 300]
    free = dict.fromkeys(("node_0", "node_1"), Fraction(0))
    assert paid(pay(1, 99, ending=Ending.IN_TIME, rates=free)) == [6, 595]


def test_a_stopped_job_pays_for_its_share_and_gives_the_rest_of_the_whole_payment_back() -> None:
    due = pay(10, 20, ending=Ending.STOPPED)
    assert due.refund_micros == 700
    assert due.asks_returned_micros == 420
    assert paid(due) == [60, 121]
    # No more goes back than was not done, to the micro-dollar.
    odd = pay(1, of=3, ending=Ending.STOPPED)
    assert (odd.refund_micros, odd.asks_returned_micros, paid(odd)) == (666, 400, [201])


def test_a_late_job_takes_its_credit_from_the_provider_at_fault_and_then_from_the_house() -> None:
    due = pay(20, 80, ending=Ending.LATE, at_fault=("org_0",))
    assert due.credit_micros == 250
    assert paid(due) == [0, 481]
    assert due.borne_credit_micros == 130
    assert pay(20, 80, ending=Ending.LATE, at_fault=("org_0",), limit=30).credit_micros == 150
    assert paid(pay(20, 80, ending=Ending.LATE, at_fault=("org_1",))) == [120, 231]


def fall_behind(*units: int, owner_limit: int, **by_provider: int) -> Settlement:
    """A warm start that did three times the work that was sold."""
    return pay(
        *units,
        ending=Ending.IN_TIME,
        overrun=Fraction(2),
        left={"owner": owner_limit, **by_provider},
    )


def test_the_house_pays_for_a_warm_start_that_falls_behind_up_to_limits_a_day() -> None:
    # 1,202 more for two thirds and one third of the work.
    plenty = fall_behind(200, 100, owner_limit=10**9, org_0=10**9, org_1=10**9)
    assert paid(plenty) == [401 + 801, 200 + 401]
    assert (plenty.borne_pay_micros, plenty.refund_micros) == (1_202, 0)
    one = fall_behind(200, 100, owner_limit=10**9, org_0=100, org_1=10**9)
    assert [node.added_micros for node in one.nodes] == [100, 401]
    both = fall_behind(200, 100, owner_limit=250, org_0=100, org_1=10**9)
    assert [node.added_micros for node in both.nodes] == [50, 200]
    assert both.borne_pay_micros == 250
    # Of a provider that nothing is known of, and beyond any limit: what was sold is paid.
    assert paid(fall_behind(200, 100, owner_limit=10**9)) == [401, 200]
    assert paid(fall_behind(200, 100, owner_limit=0, org_0=10**9, org_1=10**9)) == [401, 200]


def test_what_is_borne_for_one_organisation_comes_out_of_one_limit() -> None:
    # For its start that fell behind, and then for the credit beyond its pay of 24 and the 48.
    borne = {10**6: (48, 178), 100: (48, 52), 48: (48, 0), 40: (40, 0), 0: (0, 0)}
    for limit, expected in borne.items():
        due = pay(
            *(4, 96),
            ending=Ending.LATE,
            at_fault=("org_0",),
            overrun=Fraction(2),
            left={"owner": 10**9},
            limit=limit,
        )
        assert (due.nodes[0].added_micros, due.borne_credit_micros) == expected


def test_an_owner_who_is_also_a_provider_of_the_job_gets_no_credit() -> None:
    nodes = (NodeWork("node_0", "owner", 1, 100),)
    due = compute_settlement(
        sold=SOLD,
        work=ExecutedWork(nodes, Fraction(1)),
        ending=Ending.LATE,
        at_fault=("org_9",),
        limits=NO_LIMITS,
    )
    assert (due.credit_micros, paid(due)) == (0, [601])


@given(
    st.lists(st.integers(0, 50), max_size=4),
    st.sampled_from([Ending.STOPPED, Ending.FAILED_BY_HOUSE]),
    st.sets(st.sampled_from(["org_0", "org_1", "owner"])),
    st.integers(0, 1_000),
)
def test_asks_and_what_the_house_adds_are_what_is_paid_and_what_goes_back(
    steps: list[int], ending: Ending, at_fault: set[str], limit: int
) -> None:
    due = pay(*steps, ending=ending, of=200, at_fault=tuple(at_fault), limit=limit)
    assert due.asks_micros + due.borne_pay_micros == sum(paid(due)) + due.asks_returned_micros
    assert due.borne_pay_micros <= limit
    assert all(0 <= node.paid_micros <= node.earned_micros for node in due.nodes)
    assert due.asks_returned_micros <= due.refund_micros <= 1_000


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
    st.sets(st.sampled_from(["org_0", "org_1", "org_2"])),
    st.integers(0, 1_000),
)
def test_a_credit_is_what_providers_forgo_and_what_the_house_bears(
    steps: list[int], at_fault: set[str], limit: int
) -> None:
    due = pay(*steps, ending=Ending.LATE, of=sum(steps), at_fault=tuple(at_fault), limit=limit)
    assert due.asks_micros == sum(paid(due)) + due.asks_returned_micros
    assert due.credit_micros == due.asks_returned_micros + due.borne_credit_micros
    assert due.credit_micros <= 250
    assert due.borne_credit_micros <= limit


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
    st.sampled_from(list(Ending)),
    st.sets(st.sampled_from(["org_0", "org_1"]), min_size=1),
    st.integers(0, 1_000),
    st.integers(0, 399),
    st.booleans(),
)
def test_an_owner_and_a_vendor_gain_together_no_more_than_the_house_may_bear(
    steps: list[int], ending: Ending, at_fault: set[str], limit: int, vendor: int, is_own: bool
) -> None:
    due = pay(
        *steps,
        ending=ending,
        of=200,
        at_fault=tuple(at_fault),
        limit=limit,
        vendor=vendor,
        is_own_vendor=is_own,
    )
    together = due.refund_micros + due.credit_micros + vendor - 1_000
    forgone = sum(node.earned_micros - node.paid_micros for node in due.nodes)
    borne = due.borne_pay_micros + due.borne_credit_micros + due.borne_vendor_micros
    assert borne <= limit
    if ending is Ending.LATE:
        assert together <= forgone + due.borne_credit_micros
    else:
        assert together <= due.borne_vendor_micros
    assert due.borne_vendor_micros == 0 or not is_own


def test_a_vendors_price_goes_back_when_the_house_fails_the_job_within_its_limit() -> None:
    failed = Ending.FAILED_BY_HOUSE
    due = pay(20, ending=failed, at_fault=("org_0",), vendor=300)
    assert (due.refund_micros, due.borne_vendor_micros) == (1_000, 300)
    due = pay(20, ending=failed, at_fault=("org_0",), vendor=300, limit=100)
    assert (due.refund_micros, due.borne_vendor_micros) == (800, 100)
    due = pay(20, ending=failed, at_fault=("org_0",), vendor=300, is_own_vendor=True)
    assert (due.refund_micros, due.borne_vendor_micros) == (700, 0)


def test_the_asks_in_a_payment_are_whole_and_never_above_it() -> None:
    assert compute_asks(operational=299_999.9999999, payment_micros=300_001) == 300_000
    assert compute_asks(operational=300_000.0000001, payment_micros=300_001) == 300_000
    assert compute_asks(operational=300_000.5, payment_micros=300_000) == 300_000


def test_owners_providers_and_readers_of_the_documents_are_shown_one_sentence() -> None:
    for document in ("docs/algorithms/auction.md", "docs/adr/0009-pay-for-work-done.md"):
        assert PAY_RULE in (ROOT / document).read_text(), document


def test_an_express_job_that_was_spared_work_still_pays_a_quarter() -> None:
    due = compute_settlement(
        sold=replace(EXPRESS, payment_micros=1_001),
        work=ExecutedWork((), Fraction(0)),
        ending=Ending.STOPPED,
        at_fault=(),
        limits=NO_LIMITS,
    )
    assert due.refund_micros == 1_001 - 251


def test_a_late_job_that_was_spared_work_never_gets_back_more_than_it_paid() -> None:
    due = compute_settlement(
        sold=replace(EXPRESS, credit_percent=100),
        work=ExecutedWork((NodeWork("node_0", "org_0", 1, 10),), Fraction(10, 100)),
        ending=Ending.LATE,
        at_fault=(),
        limits=NO_LIMITS,
    )
    assert (due.refund_micros, due.credit_micros) == (750, 250)


def test_an_express_job_is_refunded_by_more_only_past_each_step_of_the_schedule() -> None:
    late = (6.0, 6.001, 30.0, 30.001, 600.0)
    assert [find_express_refund(late_s=late_s, slo_s=60.0) for late_s in late] == [
        25,
        50,
        50,
        100,
        100,
    ]


@given(
    payment=st.integers(1, 10**9),
    asks=st.integers(0, 10**9),
    part=st.integers(0, 1000),
)
def test_what_is_left_of_a_payment_covers_what_is_left_of_its_asks(payment, asks, part):
    asks = min(asks, payment)
    back = compute_spared(payment_micros=payment, vendor_micros=0, share=Fraction(part, 1000))
    left = cut_asks(asks_micros=asks, payment_micros=payment, back_micros=back)
    assert 0 <= left <= payment - back
    assert left >= asks * (1000 - part) // 1000


def test_who_wins_a_dispute_gets_more_back_than_who_loses_it():
    """Three cells of four units for nine of work: one passed in the dispute; prices stand."""
    lost = UndoneWork(Fraction(6), 1000, 800, begun=Fraction(3))
    won = UndoneWork(Fraction(8), 1000, 800, taken=Fraction(1))
    assert lost.compute_kept(914) == 86
    # Of the passed cell 333 come back in place of 98 % of its operational cost, 266.
    assert lost.compute_kept_if_won(914, won=won) == 1000 - 333 - (914 - 260)
    assert lost.compute_kept_if_won(None, won=won) <= lost.compute_kept(None)


@given(
    paid=st.integers(1, 10**6),
    units=st.tuples(*[st.integers(0, 50)] * 4),
    back=st.none() | st.integers(0, 10**6),
)
def test_a_dispute_won_never_leaves_its_owner_worse_off(paid, units, back):
    coming, begun, taken, now_begun = map(Fraction, units)
    lost = UndoneWork(coming, paid, paid // 2, begun=begun + now_begun, taken=taken + 1)
    won = UndoneWork(coming + 1, paid, paid // 2, begun=begun, taken=taken + now_begun)
    back = back and min(back, lost.most_micros)
    kept = lost.compute_kept(back)
    assert 0 <= lost.compute_kept_if_won(back, won=won) <= kept
