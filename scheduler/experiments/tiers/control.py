"""What happens at every tick: pressure, threshold, worker counts, demotions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from scheduler.experiments.tiers import printed_scaler
from scheduler.experiments.tiers.choices import Demotion, Order, Scaling
from scheduler.experiments.tiers.compiled import compiled
from scheduler.experiments.tiers.demands import demands
from scheduler.experiments.tiers.state import JobStage, Worker
from scheduler.experiments.tiers.transitions import (
    Backlog,
    begin_save,
    bring,
    demote,
    reorder,
    save,
)
from scheduler.experiments.tiers.work import done_by, expected_left_s, learn
from scheduler.experiments.tiers.workers import (
    Calendar,
    cheapest_idle,
    dearest_idle,
    end_rent,
    expected_boot_s,
    gang_price,
    launch,
    next_offer,
    note_take,
    paid_price,
    price_of,
    release_idle,
    release_unworthy,
    take_idle,
)
from scheduler.tiers import break_even, demand, demotion, serverful_scaler, serverless_scaler
from scheduler.tiers.demotion import Budget, PossibleMove, PossibleRehoming
from scheduler.tiers.serverful_scaler import TierLoad

if TYPE_CHECKING:
    from scheduler.experiments.tiers.state import Floats, RunState

SERVERLESS, SERVERFUL, SAVING = (
    int(JobStage.SERVERLESS),
    int(JobStage.SERVERFUL),
    int(JobStage.SAVING),
)
QUEUED, RESTORING = int(JobStage.QUEUED), int(JobStage.RESTORING)
HELD, BUSY, IDLE = int(Worker.HELD), int(Worker.BUSY), int(Worker.IDLE)
BOOTING = int(Worker.BOOTING)
PRINTED, CORRECTED, BOOKED = int(Scaling.PRINTED), int(Scaling.CORRECTED), int(Scaling.BOOKED)
STATIC, ON_DEMAND, HPA = int(Scaling.STATIC), int(Scaling.ON_DEMAND), int(Scaling.HPA)
BREAK_EVEN, EITHER = int(Demotion.BREAK_EVEN), int(Order.DEADLINE_OR_SHORTEST)

#: Kubernetes' default: utilisation aimed at in the paper's experiments, and how
#: many ticks a lower wish must hold before workers go.
HPA_UTILISATION = 0.7
HPA_STABLE_TICKS = 5

pressure_of = compiled(demand.compute_pressure)
next_threshold = compiled(serverless_scaler.compute_next_threshold)
compute_worker_change = compiled(serverful_scaler.compute_worker_change)
workers_change_printed = compiled(printed_scaler.compute_printed_workers_change)
move_cost = compiled(break_even.compute_move_cost)
decide_demotion = compiled(demotion.decide_demotion)
compute_move_saving = compiled(demotion.compute_move_saving)


@compiled
def decide(world: RunState, calendar: Calendar, backlog: Backlog, j: int, now: float) -> None:
    """Improved policy for one probed job on serverless without promised workers."""
    choice, jobs, track, t = world.choice[0], world.jobs, world.track, world.tally[0]
    learn(world, j, now, False)
    need = jobs[j].gpus
    left = jobs[j].predicted_s - done_by(world, j, now)
    expected = expected_left_s(world, j, now)
    age = now - jobs[j].arrive_s
    room = len(backlog) == 0 and t.idle + choice.cap - t.live >= need
    skip = choice.reserved_offers if left < choice.long_s else 0
    if room:
        price = gang_price(world, now, need, skip)
        boot = 0.0 if t.idle >= need else expected_boot_s(world, next_offer(world, now, skip))
    else:
        price, boot = paid_price(world), 0.0
    premium = choice.serverless_price - price
    cost = move_cost(
        choice.checkpoint_s, choice.restore_s, boot, 0.0, choice.serverless_price, price, 0.0
    )
    if track[j].credit < 0.0:
        bring(world, j, max(0.0, premium), cost)
    # A full tier: it is not known when it will have room, only the surplus may say stay.
    delay = math.inf
    if room:
        delay = (choice.checkpoint_s + choice.restore_s) * choice.delay_price
    move = PossibleMove(
        expected_s=expected,
        age_s=age,
        boot_s=boot,
        serverless_price=choice.serverless_price,
        worker_price=price,
        cost=cost,
        delay_cost=delay,
        gpus=need,
    )
    budget = Budget(planned=track[j].planned, surplus=t.surplus)
    decision = decide_demotion(move, budget, choice.share)
    track[j].planned = decision.planned
    t.surplus = decision.surplus
    if decision.leaves and room:
        book(world, calendar, j, now, skip)
    elif decision.leaves:
        demote(world, calendar, j, now)


@compiled
def rehome(world: RunState, calendar: Calendar, now: float) -> None:
    """Moves running jobs to offers so much cheaper that the rest repays the move.

    One move per job at a time.
    """
    choice, jobs, track, t, pool = (
        world.choice[0],
        world.jobs,
        world.track,
        world.tally[0],
        world.pool,
    )
    first = next_offer(world, now, 0)
    if first < 0 and t.idle == 0:
        return
    lowest = price_of(world, now, first)
    if t.idle > 0:
        lowest = min(lowest, pool[cheapest_idle(world)].price)
    pause_s = choice.checkpoint_s + choice.restore_s
    for i in range(t.serverful_jobs):
        track[track[i].serverful].paid = 0.0
    for i in range(t.live):
        w = pool[i].live
        if pool[w].state == BUSY:
            track[pool[w].job].paid += pool[w].price
    for i in range(t.serverful_jobs):
        j = track[i].serverful
        need = jobs[j].gpus
        if track[j].state != SERVERFUL or track[j].promised > 0:
            continue
        if t.idle + choice.cap - t.live < need:
            continue
        if track[j].moving_s + pause_s > choice.most_pause_s:
            continue
        price = track[j].paid / need
        if price <= lowest:
            continue
        left = jobs[j].predicted_s - done_by(world, j, now)
        move = PossibleRehoming(
            expected_s=expected_left_s(world, j, now),
            ends_s=now + left,
            due_s=jobs[j].due_s,
            boot_s=0.0 if t.idle >= need else choice.marketplace_boot_s,
            checkpoint_s=choice.checkpoint_s,
            restore_s=choice.restore_s,
            price_paid=price,
            price_offered=gang_price(world, now, need, 0),
            delay_price=choice.rehome_delay_price,
        )
        saved = compute_move_saving(move)
        if saved >= 0.0:
            save(world, need * saved)
            hold_workers(world, calendar, j, now, 0)
            if track[j].ready == need:
                t.rehomings += 1
                begin_save(world, calendar, j, now)


@compiled
def book(world: RunState, calendar: Calendar, j: int, now: float, skip: int) -> None:
    """Promises workers to a job that goes on running; it moves when all are ready."""
    note_take(world, now, world.jobs[j].predicted_s - done_by(world, j, now), world.jobs[j].gpus)
    hold_workers(world, calendar, j, now, skip)
    if world.track[j].ready == world.jobs[j].gpus:
        demote(world, calendar, j, now)


@compiled
def hold_workers(world: RunState, calendar: Calendar, j: int, now: float, skip: int) -> None:
    """Holds idle workers for a job, the cheapest first, and rents the others."""
    track = world.track
    need = world.jobs[j].gpus
    while need > 0 and world.tally[0].idle > 0:
        take_idle(world, j, HELD)
        track[j].promised += 1
        track[j].ready += 1
        need -= 1
    for _ in range(need):
        launch(world, calendar, now, j, skip)


@compiled
def reconsider(world: RunState, calendar: Calendar, backlog: Backlog, now: float) -> None:
    """Looks again at every probed job that is still on serverless."""
    track = world.track
    j = world.tally[0].head
    while j >= 0:
        after = track[j].after
        if now - track[j].started_s < world.choice[0].probe_s:
            return
        if track[j].promised == 0:
            decide(world, calendar, backlog, j, now)
        j = after


@compiled
def demote_overdue(world: RunState, calendar: Calendar, now: float) -> None:
    """Threshold policies: one F for all, so jobs leave in the order they started."""
    t = world.tally[0]
    while t.head >= 0 and now >= world.track[t.head].started_s + t.threshold_s:
        demote(world, calendar, t.head, now)


@compiled
def scale(world: RunState, calendar: Calendar, need_s: float, now: float, wishes: Floats) -> None:
    """Adds or releases serverful workers as the chosen scaler says."""
    choice, t = world.choice[0], world.tally[0]
    workers, coming = float(t.live), float(t.idle + t.unpromised_boots)
    waiting, window = float(t.queued_gpus), choice.windows * choice.tick_s
    if choice.scaling == STATIC:
        change = choice.cap - t.live
    elif choice.scaling == PRINTED:
        change = workers_change_printed(need_s, workers, 1.0, window, t.pressure)
    elif choice.scaling == CORRECTED:
        load = TierLoad(
            demand_s=need_s,
            workers=workers,
            rate=1.0,
            window_s=window,
            pressure=t.pressure,
            waiting=waiting,
            coming=coming,
        )
        change = compute_worker_change(load)
    elif choice.scaling == BOOKED or choice.scaling == ON_DEMAND:
        change = int(waiting - coming)
    else:
        change = hpa_change(world, wishes)
    if change > 0:
        for _ in range(change):
            if launch(world, calendar, now, -1, 0) < 0:
                break
    elif change < 0:
        if choice.holds:
            release_unworthy(world, now, -change)
            renew_idle(world, calendar, now)
        else:
            release_idle(world, now, -change)


@compiled
def renew_idle(world: RunState, calendar: Calendar, now: float) -> None:
    """Exchanges the dearest idle worker for an offer that is cheaper for the next job."""
    choice, t, pool = world.choice[0], world.tally[0], world.pool
    offer = next_offer(world, now, 0)
    if t.idle == 0 or offer < 0:
        return
    w = dearest_idle(world)
    price = price_of(world, now, offer)
    if (pool[w].price - price) * t.use_s > choice.marketplace_boot_s * price:
        end_rent(world, w, now)
        launch(world, calendar, now, -1, 0)
        t.renewals += 1


@compiled
def hpa_change(world: RunState, wishes: Floats) -> int:
    """Kubernetes: ``ceil(workers * utilisation / target)``, falling only when stable."""
    t, pool = world.tally[0], world.pool
    ready, busy = 0, 0
    for i in range(t.live):
        w = pool[i].live
        if pool[w].state != BOOTING:
            ready += 1
            if pool[w].state == BUSY:
                busy += 1
    wish = math.ceil(busy / HPA_UTILISATION) if ready > 0 else int(t.live)
    wish = max(1, wish)
    if world.choice[0].scaling != HPA:
        wish = min(wish, t.live + 1)
    wishes[t.ticks % HPA_STABLE_TICKS] = wish
    if wish > t.live:
        return wish - t.live
    return min(0, int(wishes.max()) - t.live)


@compiled
def tick(world: RunState, calendar: Calendar, backlog: Backlog, now: float, wishes: Floats) -> None:
    """One turn of both scalers (Algorithms 1 and 2) and of the improved policy."""
    choice, t = world.choice[0], world.tally[0]
    total = demands(world, now)
    windows = np.zeros(int(choice.windows))
    for k in range(windows.shape[0]):
        windows[k] = (k + 1) * choice.tick_s
    t.pressure = pressure_of(total, windows, float(t.live))
    if choice.adaptive:
        t.threshold_s = next_threshold(
            t.threshold_s,
            t.pressure,
            choice.gain_up,
            choice.rate_up_s,
            choice.gain_down,
            choice.rate_down_s,
            choice.threshold_min_s,
            choice.threshold_max_s,
        )
    if choice.order == EITHER:
        if t.pressure > 1.0 and t.overloaded == 0 and len(backlog) > 0:
            reorder(world, backlog, True)
        elif t.overloaded == 1 and len(backlog) == 0:
            t.overloaded = 0
    if choice.demotion == BREAK_EVEN:
        reconsider(world, calendar, backlog, now)
        if choice.rehomes:
            rehome(world, calendar, now)
    scale(world, calendar, float(total[choice.windows - 1]), now, wishes)
    if t.ticks < world.series.shape[0]:
        record(world, now)
    t.ticks += 1


@compiled
def record(world: RunState, now: float) -> None:
    """One row of the time series."""
    t, series, pool = world.tally[0], world.series, world.pool
    k = t.ticks
    series[k].time_s = now
    series[k].queued = t.queued_gpus
    series[k].serverful = t.live
    series[k].serverless = t.serverless_gpus
    series[k].threshold_s = t.threshold_s
    series[k].pressure = t.pressure
    paid = 0.0
    for i in range(t.live):
        paid += pool[pool[i].live].price
    series[k].price = paid / t.live if t.live > 0 else 0.0
