"""Jobs that begin on workers: no serverless, no probe and no move (compiled)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.experiments.tiers.compiled import compiled
from scheduler.experiments.tiers.state import JobStage, Worker
from scheduler.experiments.tiers.transitions import (
    Backlog,
    begin_restore,
    bring,
    enqueue,
    go_to_work,
)
from scheduler.experiments.tiers.work import expected_left_s
from scheduler.experiments.tiers.workers import (
    Calendar,
    expected_boot_s,
    gang_price,
    launch,
    next_offer,
    note_take,
    paid_price,
    price_of,
    take_dearest_idle,
    take_idle,
)
from scheduler.tiers import break_even, demotion
from scheduler.tiers.demotion import Budget, PossibleStart

if TYPE_CHECKING:
    from scheduler.experiments.tiers.state import RunState

BOOKED, HELD, BUSY = int(JobStage.BOOKED), int(Worker.HELD), int(Worker.BUSY)

move_cost = compiled(break_even.compute_move_cost)
decide_start = compiled(demotion.decide_start)
repays_rent = compiled(demotion.repays_rent)


@compiled
def start_directly(
    world: RunState, calendar: Calendar, backlog: Backlog, j: int, now: float
) -> bool:
    """Begin an arriving job on workers, or let it wait for them, if that is better."""
    choice, jobs, track, t = world.choice[0], world.jobs, world.track, world.tally[0]
    need = jobs[j].gpus
    if need > choice.cap:
        return False
    room = len(backlog) == 0 and t.idle + choice.cap - t.live >= need
    skip = choice.reserved_offers if jobs[j].predicted_s < choice.long_s else 0
    offer = next_offer(world, now, skip)
    boot, price = 0.0, paid_price(world)
    if room:
        price = gang_price(world, now, need, skip)
        boot = 0.0 if t.idle >= need else expected_boot_s(world, offer)
    possible = PossibleStart(
        expected_s=expected_left_s(world, j, now),
        boot_s=boot,
        serverless_boot_s=choice.serverless_boot_s,
        serverless_price=choice.serverless_price,
        worker_price=price,
        checkpoint_s=choice.checkpoint_s,
        restore_s=choice.restore_s,
        delay_price=choice.delay_price,
        waits=not room,
        gpus=need,
    )
    premium = max(0.0, choice.serverless_price - price)
    bring(
        world,
        j,
        premium,
        move_cost(
            choice.checkpoint_s, choice.restore_s, boot, 0.0, choice.serverless_price, price, 0.0
        ),
    )
    budget = Budget(planned=track[j].planned, surplus=t.surplus)
    decision = decide_start(possible, budget, choice.share)
    track[j].planned = decision.planned
    t.surplus = decision.surplus
    if not decision.leaves:
        return False
    track[j].moved = 1
    t.direct_starts += 1
    if not room:
        enqueue(world, calendar, backlog, j, now)
        return True
    # A job that would not rent a worker fills one that is idle anyway: the dearest.
    rents = repays_rent(
        possible.expected_s,
        expected_boot_s(world, offer),
        choice.serverless_price,
        price_of(world, now, offer),
        choice.delay_price,
    )
    if rents:
        note_take(world, now, jobs[j].predicted_s, need)
    go_to_work(world, j)
    track[j].state = BOOKED
    found = 0
    while found < need and t.idle > 0:
        if rents:
            take_idle(world, j, HELD)
        else:
            take_dearest_idle(world, j, HELD)
        found += 1
    track[j].promised = track[j].ready = found
    for _ in range(need - found):
        launch(world, calendar, now, j, skip)
    if found == need:
        begin_booked(world, calendar, j, now)
    return True


@compiled
def begin_booked(world: RunState, calendar: Calendar, j: int, now: float) -> None:
    """All workers of a job that has not run are ready."""
    t, pool, track = world.tally[0], world.pool, world.track
    track[j].booting_s = now - world.jobs[j].arrive_s
    for i in range(t.live):
        w = pool[i].live
        if pool[w].job == j:
            pool[w].state = BUSY
    begin_restore(world, calendar, j, now)


@compiled
def unbook(world: RunState, j: int, now: float) -> None:
    """A worker of a job that has not run failed: the job waits like others."""
    world.track[j].booting_s = now - world.jobs[j].arrive_s
    world.track[j].version += 1
