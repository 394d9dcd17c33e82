"""Runs small enough to follow with a pencil."""

from __future__ import annotations

import math

import pytest

from scheduler.experiments.tiers.state import RunState
from scheduler.tiers.rules import TierRules
from tests.unit.scheduler.experiments.tiers.runs import (
    finished,
    jobs,
    market,
    on_serverless_first,
    ready,
)

SERVERLESS, CONVENTIONAL = 2.10 / 3600.0, 1.29 / 3600.0


def test_a_job_over_a_fixed_threshold_is_saved_queued_and_restored() -> None:
    # Starts at 4, leaves at 304, saved 334, worker asked for at the tick of 360, ready
    # 560, restored 810, 700 s left.
    run = finished(ready("fixed-300", jobs((0, 1000))))
    assert run.jct_s.tolist() == [1510.0]
    assert (run.boot_s, run.queue_s, run.moving_s) == (4.0, 226.0, 280.0)
    assert run.serverless_usd == pytest.approx(334 * SERVERLESS)
    assert run.conventional_usd == pytest.approx((1510 - 360) * CONVENTIONAL)
    assert (run.wholly_serverless, run.demotions, run.peak_serverful) == (0.0, 1, 1)


def test_a_job_under_the_threshold_never_leaves_serverless() -> None:
    run = finished(ready("fixed-300", jobs((0, 299))))
    assert run.jct_s.tolist() == [303.0]
    assert run.cost_usd == pytest.approx(303 * SERVERLESS)
    assert (run.wholly_serverless, run.demotions, run.peak_serverful) == (1.0, 0, 0)


def test_a_hand_off_boots_the_worker_while_the_job_runs_on() -> None:
    # Probed at 34, worker ready at 74 with 70 s of work done, saved 104, restored 354.
    run = finished(ready(on_serverless_first(), jobs((0, 10_000)), supply=market(offers=1)))
    assert run.jct_s.tolist() == [10_284.0]
    assert (run.boot_s, run.queue_s, run.moving_s) == (4.0, 0.0, 280.0)
    assert run.serverless_usd == pytest.approx(104 * SERVERLESS)
    assert run.marketplace_usd == pytest.approx((10_284 - 34) / 3600.0)
    assert run.conventional_usd == 0.0


def test_a_job_whose_rest_does_not_repay_the_move_stays() -> None:
    run = finished(ready(on_serverless_first(), jobs((0, 250)), supply=market(offers=1)))
    assert run.jct_s.tolist() == [254.0]
    assert run.demotions == 0


def test_a_job_that_ends_during_the_boot_costs_the_boot_and_does_not_move() -> None:
    # Ends at 704 + 4; the worker is asked for at the probe of 34 and would take 900 s.
    slow = market(offers=1, boot_s=900.0)
    world = ready(on_serverless_first(), jobs((0, 700)), supply=slow)
    run = finished(world)
    assert run.jct_s.tolist() == [704.0]
    assert run.demotions == 0
    assert run.marketplace_usd == pytest.approx((704 - 34) / 3600.0)


def test_two_jobs_share_one_worker_in_order_of_deadline() -> None:
    world = ready("tiresias-np-static", jobs((0, 1000), (0, 100), (0, 50)), cap=1)
    world.jobs["due_s"] = [10.0, 30.0, 20.0]
    world.choice["order"] = 0
    run = finished(world)
    # Ready at 200; the order is first, third, second.
    assert run.jct_s.tolist() == [1200.0, 1350.0, 1250.0]
    assert run.conventional_usd == pytest.approx(1350 * CONVENTIONAL)


def test_a_gang_at_the_head_waits_for_all_its_workers_and_is_not_overtaken() -> None:
    world = ready("tiresias-np-static", jobs((0, 1000), (1, 100, 2), (2, 100)), cap=2)
    run = finished(world)
    # 0 runs on one worker from 200; the gang needs both, at 1200; 2 goes last.
    assert (run.jct_s + world.jobs["arrive_s"]).tolist() == [1200.0, 1300.0, 1400.0]


def test_shortest_first_preempts_a_job_that_is_longer_even_after_the_switch() -> None:
    world = ready("sjf-p-static", jobs((0, 5000), (300, 100)), cap=1)
    run = finished(world)
    # 0 starts at 200, is stopped at 300, saved 330; 1 runs 330-430; 0 restores to 680.
    assert (run.jct_s + world.jobs["arrive_s"]).tolist() == [680 + 4900.0, 430.0]
    assert run.preemptions == 1


def test_shortest_first_does_not_preempt_for_less_than_the_switch_costs() -> None:
    run = finished(ready("sjf-p-static", jobs((0, 500), (300, 150)), cap=1))
    assert run.preemptions == 0
    assert run.jct_s.tolist() == [700.0, 550.0]


def test_tiresias_stops_a_job_that_had_its_share_for_one_that_had_none() -> None:
    run = finished(ready("tiresias-p-static", jobs((0, 5000), (510, 100)), cap=1))
    # 0 has attained 310 s by 510: the second queue.
    assert run.preemptions == 1
    assert run.jct_s.tolist()[1] == 130.0


def test_a_failed_node_costs_what_was_done_since_the_last_safe_point() -> None:
    world = ready("tiresias-np-static", jobs((0, 1000)), cap=1, lives_s=(700.0, math.inf))
    run = finished(world)
    # Ready 200, fails at 900 with 700 done of which 600 are safe; the tick of 900 asks
    # for another, ready 1100, restored 1350, 400 left.
    assert run.jct_s.tolist() == [1750.0]
    assert run.node_failures == 1
    assert run.conventional_usd == pytest.approx((900 + (1750 - 900)) * CONVENTIONAL)


def test_a_worker_that_fails_before_the_hand_off_leaves_the_job_where_it_is() -> None:
    # The gang's first worker (40 s) is there before the second (conventional, 200 s)
    # and dies in between; the promise is void, and the next ticks decide again.
    world = ready(
        on_serverless_first(),
        jobs((0, 50_000, 2)),
        supply=market(offers=1),
        lives_s=(50.0, math.inf),
    )
    run = finished(world)
    assert run.node_failures == 1
    assert run.demotions == 1
    assert run.queue_s == 0.0


def test_an_offer_that_vanishes_in_its_boot_is_paid_and_the_next_one_taken() -> None:
    world = ready(
        on_serverless_first(),
        jobs((0, 10_000)),
        supply=market(offers=1),
        luck=(0.1, 0.9),
        lives_s=(math.inf,),
    )
    run = finished(world)
    # Asked at 34, gone at 74, asked again, ready at 114: 40 s later than without.
    assert run.vanished_offers == 1
    assert run.jct_s.tolist() == [10_284.0]
    assert run.marketplace_usd == pytest.approx((10_284 - 34) / 3600.0)
    assert run.serverless_usd == pytest.approx(144 * SERVERLESS)


def test_a_running_job_moves_on_when_a_much_cheaper_offer_appears() -> None:
    world = ready(on_serverless_first(), jobs((0, 200_000)), supply=market(offers=2, price=1.2))
    world.supply.offers[2:, 1] = 0.2
    run = finished(world)
    assert world.tally[0]["rehomings"] == 1
    # One pause more than the single move of a job with one offer.
    assert run.jct_s.tolist() == [200_000 + 4 + 280 + 280]
    assert run.queue_s == 0.0


def test_a_long_job_begins_on_its_worker_without_serverless() -> None:
    run = finished(ready("improved", jobs((0, 10_000)), supply=market(offers=1)))
    assert run.jct_s.tolist() == [10_040.0]
    assert (run.boot_s, run.queue_s, run.moving_s) == (40.0, 0.0, 0.0)
    assert run.cost_usd == run.marketplace_usd == pytest.approx(10_040 / 3600.0)
    assert (run.demotions, run.peak_serverless) == (0, 0)


def test_a_long_job_begins_on_serverless_where_a_move_is_short_beside_a_boot() -> None:
    # Starts at 4, when its worker is asked for; ready at 44, saved at 49, restored at 59.
    here = TierRules(checkpoint_s=5.0, restore_s=10.0)
    run = finished(ready("improved", jobs((0, 10_000)), supply=market(offers=1), rules=here))
    assert run.jct_s.tolist() == [10_019.0]
    assert run.serverless_usd == pytest.approx(49 * SERVERLESS)
    assert run.marketplace_usd == pytest.approx((10_019 - 4) / 3600.0)


def test_a_job_too_short_to_repay_a_boot_begins_on_serverless() -> None:
    # 36.04 s at $1 against $1.10 an hour saved: 32.8 s.
    run = finished(ready("improved", jobs((0, 32)), supply=market(offers=1)))
    assert run.jct_s.tolist() == [36.0]
    assert run.wholly_serverless == 1.0


def test_a_job_that_finds_an_idle_worker_begins_on_it_at_once() -> None:
    # The first ends at 1040; the worker would be given back at the tick of 1080.
    run = finished(ready("improved", jobs((0, 1000), (1050, 20)), supply=market(offers=1)))
    assert run.jct_s.tolist() == [1040.0, 20.0]
    assert run.serverless_usd == 0.0


def test_a_worker_that_dies_before_its_first_job_began_sends_the_job_to_the_backlog() -> None:
    lives_s = (50.0, *(math.inf for _ in range(9)))
    world = ready("improved", jobs((0, 50_000, 2)), supply=market(offers=1), lives_s=lives_s)
    run = finished(world)
    assert run.node_failures == 1
    # The offer's worker is there at 40 and dies at 90; the job waits for the next tick's.
    assert (run.boot_s, run.serverless_usd) == (90.0, 0.0)
    assert run.queue_s > 0.0


def test_a_job_pauses_no_longer_to_move_on_than_a_move_from_serverless_takes() -> None:
    # Two cheaper offers, one after the other, are each worth a move of 280 s.
    often, once = (
        ready(policy, jobs((0, 400_000)), supply=market(offers=3, price=1.2))
        for policy in (on_serverless_first(), "improved")
    )
    for world in (often, once):
        world.supply.offers[2:, 1] = 0.8
        world.supply.offers[4:, 2] = 0.2
    assert finished(often).moving_s == 3 * 280.0
    assert finished(once).moving_s == 280.0


def full_tier(rest_s: float, **choice: float) -> RunState:
    """One worker rented at 1.2 while 0.2 comes on offer; a second job waits for it."""
    world = ready(
        on_serverless_first(1), jobs((0, 1500), (0, rest_s)), cap=1, supply=market(offers=2)
    )
    world.supply.offers[:, 0] = 1.2
    world.supply.offers[:2, 1] = math.inf
    world.supply.offers[2:, 1] = 0.2
    for name, value in choice.items():
        world.choice[name] = value
    return world


def test_a_full_tier_exchanges_a_dear_worker_for_a_cheap_one_between_two_jobs() -> None:
    # 0 is asked for at 34, ready 74, restored 354, done 1784. 1 leaves serverless at 64
    # with 30 s done; its worker boots 1784-1824, it restores to 2074.
    world = full_tier(20_000)
    run = finished(world)
    assert run.jct_s.tolist() == [1784.0, 2074.0 + 19_970.0]
    assert (world.tally[0]["renewals"], world.tally[0]["rehomings"]) == (1, 0)
    rent = (1784 - 34) * 1.2 + (22_044 - 1784) * 0.2
    assert run.marketplace_usd == pytest.approx(rent / 3600.0)


def test_a_full_tier_keeps_a_dear_worker_for_a_job_too_short_to_repay_the_boot() -> None:
    # 36.04 s expected, at a rent of 0.2 and $50 an hour of delay, against a dollar an hour
    # saved on what is left after the probe: 1809.2 s.
    short, longer = full_tier(1839.0, share=0.0), full_tier(1840.0, share=0.0)
    finished(short)
    finished(longer)
    assert (short.tally[0]["renewals"], longer.tally[0]["renewals"]) == (0, 1)


def test_half_of_what_a_cheaper_rent_saves_is_added_to_the_surplus() -> None:
    shared, kept = full_tier(20_000), full_tier(20_000, saved_share=0.0)
    finished(shared)
    finished(kept)
    added = shared.tally[0]["surplus"] - kept.tally[0]["surplus"]
    assert added == pytest.approx(0.5 * ((1.2 - 0.2) * 19_970 - 0.2 * 36.04))


def test_a_gang_above_the_cap_stays_on_serverless() -> None:
    run = finished(ready("improved", jobs((0, 90_000, 8)), cap=4))
    assert run.wholly_serverless == 1.0
    assert run.cost_usd == pytest.approx(8 * 90_004 * SERVERLESS)


@pytest.mark.parametrize(
    ("policy", "cap", "rows", "message"),
    [
        ("nonsense", None, [(0, 10)], "no policy 'nonsense'; choose one of corrected, fixed-300"),
        ("improved", 0, [(0, 10)], "cap must be at least 1"),
        ("sjf-np", 4, [(0, 10, 8)], "needs 8 GPUs at once and the cap is 4"),
        ("hpa", None, [(0, 10, 2)], "never gathers a gang"),
        ("sjf-np-static", None, [(0, 10)], "give --cap"),
    ],
)
def test_runs_that_cannot_be_are_refused_with_a_remedy(
    policy: str, cap: int | None, rows: list[tuple[float, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ready(policy, jobs(*rows), cap=cap)
