"""The forecast follows past days as far as today does, and the solve prices scarcity."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.auction import Engine, ZoneRules
from scheduler.auction.log import events
from scheduler.auction.prices import Forecast, KnownBids, Settings, forecast_futures, solve_prices
from scheduler.auction.prices.forecast import forecast_arrivals
from scheduler.auction.prices.scenarios import find_scenarios
from scheduler.auction.search.grid import Floats
from scheduler.experiments.auction.run import decide_days, make_rules, run_baseline, run_policy
from scheduler.types import NodeSpec, Task
from tests.unit.scheduler.experiments.auction.builders import CROWDED


def tasks(counts: dict[int, int], *, name: str = "t") -> list[Task]:
    return [
        Task(
            id=f"{name}-{slot}-{j}",
            arrival_slot=slot,
            deadline_slot=slot + 4,
            compute_demand=10.0,
            memory_demand=1.0,
            bid=50.0,
            rates={"g": 10.0},
        )
        for slot, count in counts.items()
        for j in range(count)
    ]


def counts(of: dict[int, int], *, slots: int = 40) -> Floats:
    """Give bids by slot, of a whole day or its first slots."""
    return np.array([of.get(slot, 0) for slot in range(slots)], np.float64)


def futures(
    today: list[Task],
    past: list[list[Task]],
    *,
    slot: int,
    count: int,
    most: int = 10_000,
    seed: int = 1,
) -> tuple[Forecast, ...]:
    return forecast_futures(
        slot=slot,
        last_slot=39,
        day_start=0,
        today=today,
        past_days=past,
        most=most,
        futures=count,
        seed=seed,
    )


def forecast(
    today: list[Task], past: list[list[Task]], *, slot: int, most: int = 10_000
) -> Forecast:
    """Give the mean of what may come."""
    (found,) = futures(today, past, slot=slot, count=1, most=most)
    return found


def by_half(found: Forecast) -> tuple[float, float]:
    """Give expected arrivals before and from slot 30 on."""
    early = sum(1 for t in found.tasks if t.arrival_slot < 30)
    return early * found.weight, (len(found.tasks) - early) * found.weight


LATE = {slot: (20 if slot < 20 else 0) + (60 if slot >= 30 else 0) for slot in range(40)}


def test_a_day_like_the_past_is_expected_to_end_like_it() -> None:
    today = tasks(dict.fromkeys(range(20), 20))
    early, late = by_half(forecast(today, [tasks(LATE), tasks(LATE)], slot=20))
    assert early == 0.0
    assert late == pytest.approx(600.0, rel=0.01)


def test_a_busier_day_of_the_same_shape_scales_the_forecast() -> None:
    today = tasks(dict.fromkeys(range(20), 40))
    early, late = by_half(forecast(today, [tasks(LATE), tasks(LATE)], slot=20))
    assert early <= 1.0
    assert 1000.0 < late <= 1200.0


def test_a_single_past_day_is_followed_nearly_as_far_as_two_that_agree() -> None:
    today = tasks(dict.fromkeys(range(20), 20))
    early, late = by_half(forecast(today, [tasks(LATE)], slot=20))
    assert late > 10.0 * early
    assert early + late == pytest.approx(600.0, rel=0.05)


def test_a_day_of_another_shape_goes_on_as_its_mean_or_up_to_the_past_total() -> None:
    today = counts({slot: 40 for slot in range(20) if slot % 3 != 2}, slots=20)
    past = counts(dict.fromkeys(range(6), 100) | {39: 500})
    found = find_scenarios(today, [past], 20).scenarios
    (ended,) = [scenario for scenario in found if scenario.has_fixed_total]
    # Half of it has the 540 that are missing to 1,100; the rest goes on about as so far.
    assert ended.share == pytest.approx(0.5)
    assert ended.rest.sum() == pytest.approx(540.0)
    on = [scenario for scenario in found if scenario.share > 1e-9 and not scenario.has_fixed_total]
    assert sum(scenario.share for scenario in on) == pytest.approx(0.5)
    assert all(np.ptp(scenario.rest) == 0.0 for scenario in on)
    assert [scenario.rest.sum() for scenario in on] == pytest.approx([555.0, 558.0], rel=0.01)
    early, late = by_half(
        forecast(
            tasks({slot: 40 for slot in range(20) if slot % 3 != 2}),
            [tasks(dict.fromkeys(range(6), 100) | {39: 500})],
            slot=20,
        )
    )
    assert early == pytest.approx(late, rel=0.1)


def test_past_days_whose_totals_differ_tell_less_of_todays() -> None:
    today = counts({slot: 40 for slot in range(20) if slot % 3 != 2}, slots=20)
    shape = dict.fromkeys(range(6), 100) | {39: 500}

    def ended(*factors: int) -> float:
        past = [counts({slot: n * factor for slot, n in shape.items()}) for factor in factors]
        (scenario,) = [c for c in find_scenarios(today, past, 20).scenarios if c.has_fixed_total]
        return scenario.share

    assert ended(1, 1, 1) == pytest.approx(0.5)
    # The logs of 1 and 2 have a standard deviation of 0.347, that of half the share is 0.2.
    assert ended(1, 2) == pytest.approx(0.5 / (1.0 + (np.log(2.0) / 2.0 / 0.2) ** 2))
    assert ended(1, 9) < 0.02


def test_a_quieter_day_of_the_usual_shape_is_not_expected_to_make_up_for_it() -> None:
    past = [counts(dict.fromkeys(range(40), 60))] * 2
    found = find_scenarios(counts(dict.fromkeys(range(30), 30), slots=30), past, 10)
    (ended,) = [scenario for scenario in found.scenarios if scenario.has_fixed_total]
    assert ended.share == 0.0
    # 300 at today's rate; 600 on past days, and 900 more to their total.
    expected = sum(scenario.share * scenario.rest.sum() for scenario in found.scenarios)
    assert 300.0 < expected < 345.0


def test_what_ends_at_a_past_total_is_moved_by_a_rush_and_not_made_more() -> None:
    today = counts(dict.fromkeys(range(16), 10) | dict.fromkeys(range(16, 20), 40), slots=20)
    past = [counts(dict.fromkeys(range(6), 100) | {39: 200})] * 2
    found = forecast_arrivals(today, past, 20)
    pairs = list(zip(found.scenarios, found.expected, strict=True))
    ((ended, moved),) = [(scenario, rate) for scenario, rate in pairs if scenario.has_fixed_total]
    assert moved.sum() == pytest.approx(ended.rest.sum()) == pytest.approx(480.0)
    assert moved[0] > 1.5 * moved[-1]
    assert all(
        rate.sum() > 1.2 * c.rest.sum()
        for c, rate in pairs
        if not c.has_fixed_total and c.share > 0
    )


@given(
    seen=st.lists(st.integers(0, 3000), min_size=0, max_size=30),
    past=st.lists(st.lists(st.integers(0, 3000), min_size=40, max_size=40), max_size=4),
)
@example(seen=[0] * 20, past=[[0] * 40])
@example(seen=[50] * 20, past=[[0] * 40, [50] * 40])
@example(seen=[20] * 30, past=[[20] * 40, [20] * 40])
def test_courses_are_likely_to_a_whole_whatever_came(
    seen: list[int], past: list[list[int]]
) -> None:
    today = np.array(seen, np.float64)
    days = [np.array(day, np.float64) for day in past]
    found = forecast_arrivals(today, days, 40 - len(seen))
    shares = [scenario.share for scenario in found.scenarios]
    assert min(shares) >= 0.0
    assert sum(shares) == pytest.approx(1.0)
    for rate in (*found.expected, found.mean):
        assert len(rate) == 40 - len(seen)
        assert np.all(np.isfinite(rate))
        assert np.all(rate >= 0.0)


def test_past_days_that_do_not_look_like_each_other_are_not_trusted() -> None:
    today = np.full(20, 15.0)
    unlike = [counts({slot: 600}) for slot in (5, 12, 31, 34, 37)]
    alike = [counts(dict.fromkeys(range(30), 15) | {35: 150})] * 5
    shapes = [
        sum(c.share for c in find_scenarios(today, past, 20).scenarios if np.ptp(c.rest) > 0.0)
        for past in (unlike, alike)
    ]
    assert find_scenarios(today, unlike, 20).trust < 0.1
    assert find_scenarios(today, alike, 20).trust == 1.0
    assert shapes[0] < 0.75
    assert shapes[1] > 0.95


def test_futures_lie_as_far_apart_as_forecasts_of_past_days_were_wrong() -> None:
    # As many bids, but by fits and starts.
    steady = [tasks(dict.fromkeys(range(40), 20))] * 4
    unsteady = [tasks({s: 10 if (s // 5 + n) % 2 else 40 for s in range(40)}) for n in range(4)]
    today = tasks(dict.fromkeys(range(20), 20))
    spread = []
    for past in (steady, unsteady):
        found = [f.weight * len(f.tasks) for f in futures(today, past, slot=20, count=6)]
        spread.append(max(found) / min(found))
    assert spread[0] < 1.2
    assert spread[1] > 1.8


def test_a_rush_that_lasts_is_expected_to_fade_slowly_and_a_passing_burst_at_once() -> None:
    lasting = dict.fromkeys(range(16), 10) | dict.fromkeys(range(16, 24), 60)
    passing = {slot: 40 if slot % 4 == 3 else 5 for slot in range(24)}
    rush, _ = by_half(forecast(tasks(lasting), [], slot=24))
    burst, _ = by_half(forecast(tasks(passing), [], slot=24))
    mean = sum(lasting.values()) / 24 * 6
    assert rush > 1.3 * mean
    assert burst == pytest.approx(sum(passing.values()) / 24 * 6, rel=0.25)


def test_a_rush_that_is_still_growing_is_expected_to_grow_on() -> None:
    grown = forecast(
        tasks({s: 20 if s < 14 else 20 + 20 * (s - 13) for s in range(20)}), [], slot=20
    )
    level = forecast(tasks({s: 20 if s < 14 else 120 for s in range(20)}), [], slot=20)
    now = [sum(t.arrival_slot == 20 for t in found.tasks) for found in (grown, level)]
    # The last slots had 100, 120 and 140; and 120 each.
    assert now[0] > 140
    assert now[0] > now[1]
    late = [sum(t.arrival_slot == 39 for t in found.tasks) for found in (grown, level)]
    assert late[0] < 500


def test_a_burst_in_the_slot_under_way_brings_half_as_many_again() -> None:
    today = tasks(dict.fromkeys(range(20), 20) | {20: 200})
    found = forecast(today, [], slot=20)
    assert sum(t.arrival_slot == 20 for t in found.tasks) == pytest.approx(100, abs=2)
    several = futures(today, [], slot=20, count=4)
    here = [sum(t.arrival_slot == 20 for t in f.tasks) * f.weight for f in several]
    assert here == pytest.approx([100.0] * 4, rel=0.05)


def test_of_a_burst_that_trusted_past_days_had_too_more_is_expected_than_half_as_many() -> None:
    past = tasks(dict.fromkeys(range(40), 20) | {20: 200})
    today = tasks(dict.fromkeys(range(20), 20) | {20: 60})
    told = forecast(today, [past, past], slot=20)
    untold = forecast(today, [], slot=20)
    at = [sum(t.arrival_slot == 20 for t in found.tasks) for found in (told, untold)]
    assert at[1] == pytest.approx(30, abs=1)
    # 140 if today were not a little behind past days by now.
    assert 90 < at[0] <= 140


def test_a_slot_under_way_with_few_bids_yet_is_expected_whole() -> None:
    steady = dict.fromkeys(range(20), 20)
    assert forecast(tasks(steady | {20: 5}), [], slot=20).weight == 1.0
    found = forecast(tasks(steady | {20: 5}), [], slot=20)
    assert sum(t.arrival_slot == 20 for t in found.tasks) == pytest.approx(20, abs=1)


def test_of_a_slot_of_which_a_part_is_over_the_rest_is_expected() -> None:
    today = tasks(dict.fromkeys(range(20), 20) | {20: 10})
    found = forecast_futures(
        slot=20.5,
        last_slot=39,
        day_start=0,
        today=today,
        past_days=[],
        most=10_000,
        futures=1,
        seed=0,
    )[0]
    at = Counter(task.arrival_slot for task in found.tasks)
    assert (at[20], at[21]) == (pytest.approx(10, abs=1), pytest.approx(20, abs=1))


def test_futures_stray_from_the_mean_to_both_sides_and_are_drawn_again_by_the_seed() -> None:
    today = tasks(dict.fromkeys(range(20), 20))
    found = futures(today, [], slot=20, count=8)
    counts = [len(future.tasks) * future.weight for future in found]
    assert min(counts) < 360.0
    assert max(counts) > 440.0
    assert sum(counts) / 8 == pytest.approx(400.0)
    assert futures(today, [], slot=20, count=8) == found
    assert futures(today, [], slot=20, count=8, seed=2) != found


def test_futures_follow_the_past_days_one_by_one_where_today_looks_like_them() -> None:
    # Two past days alike but for a burst at another time.
    base = {slot: 20 if slot < 24 else 60 for slot in range(40)}
    past = [tasks(base | {26: 180}), tasks(base | {36: 180})]
    at = [
        max(Counter(t.arrival_slot for t in future.tasks).items(), key=lambda item: item[1])[0]
        for future in futures(tasks(dict.fromkeys(range(20), 20)), past, slot=20, count=4)
    ]
    assert sorted(at) == [26, 26, 36, 36]


def test_a_burst_goes_on_as_those_of_past_days_went_on() -> None:
    today = tasks(dict.fromkeys(range(20), 20) | {20: 60})
    # Each past day brings 160 at once now and then, at hours of its own.
    past = [
        tasks(dict.fromkeys(range(40), 20) | dict.fromkeys(range(n, 40, 10), 160)) for n in (1, 4)
    ]
    found = forecast(today, past, slot=20)
    told = sum(t.arrival_slot == 20 for t in found.tasks)
    # In proportion to today's mean of 21.9 eight slots had 103, 43 more than this one; half
    # as many again, 30, count for four.
    assert told == pytest.approx((8 * 43.1 + 4 * 30) / 12, abs=1)


def test_a_first_day_is_expected_to_go_on_as_it_does() -> None:
    found = forecast(tasks(dict.fromkeys(range(10), 10)), [], slot=10)
    assert len(found.tasks) == 300
    assert found.weight == 1.0
    counts = Counter(t.arrival_slot for t in found.tasks)
    assert set(counts) == set(range(10, 40))


def test_few_drawn_tasks_stand_for_many() -> None:
    found = forecast(tasks(dict.fromkeys(range(10), 10)), [], slot=10, most=50)
    assert len(found.tasks) == 50
    assert found.weight == pytest.approx(6.0)


def test_nothing_seen_is_nothing_expected() -> None:
    assert forecast([], [], slot=0) == Forecast(tasks=(), weight=0.0)
    assert forecast([], [[]], slot=5) == Forecast(tasks=(), weight=0.0)
    assert futures([], [], slot=0, count=3) == (Forecast(tasks=(), weight=0.0),) * 3


def test_the_same_seed_draws_the_same_tasks() -> None:
    today = tasks(dict.fromkeys(range(10), 5))
    assert forecast(today, [], slot=10) == forecast(today, [], slot=10)


def zone(nodes: int) -> Engine:
    engine = Engine(ZoneRules(policy="lagrangian", horizon_slots=40))
    for k in range(nodes):
        engine.apply(
            events.NodeJoined(
                NodeSpec(id=f"n-{k}", gpu_type="g", compute_capacity=20.0, memory_capacity=9.0)
            )
        )
    return engine


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize(("nodes", "scarce"), [(1, True), (30, False)])
def test_prices_are_positive_where_and_only_where_demand_exceeds_room(
    nodes: int, scarce: bool, count: int
) -> None:
    engine, today = zone(nodes), tasks(dict.fromkeys(range(10), 5))
    event = solve_prices(
        engine,
        KnownBids(
            slot=10,
            last_slot=39,
            day_start=0,
            today=today,
            past_days=[],
            won={task.id for task in today},
        ),
        seed=0,
        settings=Settings(iterations=100, futures=count),
    )
    engine.apply(event)
    middle = engine.prices().compute_price[:, 15:35]
    assert bool(np.all(middle > 0.5)) is scarce
    assert bool(np.all(middle == 0.0)) is not scarce
    expected = event.inputs["forecast_tasks"] * event.inputs["forecast_weight"]
    assert expected == pytest.approx(150.0)
    assert event.usual_rates == {"g": (10.0,)}


def test_a_zone_without_nodes_or_bids_solves_to_nothing() -> None:
    event = solve_prices(
        zone(0),
        KnownBids(
            slot=0,
            last_slot=39,
            day_start=0,
            today=[],
            past_days=[],
        ),
        seed=0,
    )
    assert (event.compute_price, event.memory_price) == ({}, {})


def test_on_a_crowded_day_solved_prices_beat_first_come_first_served() -> None:
    day = CROWDED.day(7)
    rules = make_rules(CROWDED, "lagrangian")
    past = decide_days(CROWDED, [CROWDED.day(100), CROWDED.day(101)], rules=rules)
    ours = run_policy(CROWDED, day, rules=rules, past_days=past)
    theirs = run_baseline("eft", CROWDED, day, seed=0, time_limit_s=1.0)
    assert ours.welfare > theirs.welfare
    again = run_policy(CROWDED, day, rules=rules, past_days=past)
    assert again.decisions == ours.decisions


def test_the_market_solves_for_prices_without_highs() -> None:
    """HiGHS belongs to the simulator's extra, which a live market does not install."""
    code = (
        "import sys; sys.modules['highspy'] = None; "
        "from scheduler.auction import Engine, ZoneRules; "
        "import scheduler.auction.prices; "
        "Engine(ZoneRules(policy='lagrangian')); print('solved')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("solved\n", 0), done.stderr


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(ValueError, match="choose eft, ntm or titan"):
        run_baseline("best", CROWDED, [], seed=0, time_limit_s=1.0)
