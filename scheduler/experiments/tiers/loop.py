"""The discrete-event loop: arrivals, ticks, thresholds and the calendar, in time order."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import numpy as np

from scheduler.experiments.tiers.choices import Demotion, Scaling
from scheduler.experiments.tiers.compiled import compiled
from scheduler.experiments.tiers.control import decide, demote_overdue, tick
from scheduler.experiments.tiers.demands import come_near
from scheduler.experiments.tiers.starts import begin_booked, start_directly, unbook
from scheduler.experiments.tiers.state import JobStage, TierEvent, Wait, Worker
from scheduler.experiments.tiers.transitions import (
    Backlog,
    arrive,
    begin_restore,
    begin_run,
    begin_save,
    demote,
    dispatch,
    enqueue,
    finish,
    leave_serverless,
    preempt,
    start_serverless,
)
from scheduler.experiments.tiers.work import done_by
from scheduler.experiments.tiers.workers import (
    ALL,
    AT_WORK,
    PROMISED,
    Calendar,
    cancel_boots,
    end_rent,
    free_workers_of,
    launch,
    make_idle,
    release_idle,
    start_life,
)

if TYPE_CHECKING:
    from scheduler.experiments.tiers.demands import come_near
from scheduler.experiments.tiers.state import RunState

SERVERLESS_READY, JOB_ENDS = int(TierEvent.SERVERLESS_READY), int(TierEvent.JOB_ENDS)
SAVED, RESTORED, PROBED = int(TierEvent.SAVED), int(TierEvent.RESTORED), int(TierEvent.PROBED)
NEARS, FAR = int(TierEvent.NEARS), int(Wait.FAR)
WORKER_READY = int(TierEvent.WORKER_READY)
SERVERLESS, SERVERFUL, SAVING = (
    int(JobStage.SERVERLESS),
    int(JobStage.SERVERFUL),
    int(JobStage.SAVING),
)
RESTORING, BOOKED_JOB = int(JobStage.RESTORING), int(JobStage.BOOKED)
BOOTING, IDLE, HELD, BUSY = (
    int(Worker.BOOTING),
    int(Worker.IDLE),
    int(Worker.HELD),
    int(Worker.BUSY),
)
THRESHOLD, BREAK_EVEN = int(Demotion.THRESHOLD), int(Demotion.BREAK_EVEN)
STATIC, ON_DEMAND = int(Scaling.STATIC), int(Scaling.ON_DEMAND)


@compiled
def on_saved(world: RunState, calendar: Calendar, backlog: Backlog, j: int, now: float) -> None:
    """A checkpoint is safe: the job leaves its worker."""
    track = world.track
    track[j].saved_s = track[j].done_s
    track[j].restores = 1
    track[j].moving_s += now - track[j].since_s
    if track[j].moved == 0:
        leave_serverless(world, j, now)
        track[j].moved = 1
    else:
        end_victim(world, j)
        free_workers_of(world, j, AT_WORK)
    if track[j].promised > 0:
        take_promised(world, j)
        begin_restore(world, calendar, j, now)
    else:
        enqueue(world, calendar, backlog, j, now)


@compiled
def end_victim(world: RunState, j: int) -> None:
    """A preempted job no longer saves."""
    if world.track[j].victim == 1:
        world.track[j].victim = 0
        world.tally[0].saving_victims -= world.jobs[j].gpus


@compiled
def take_promised(world: RunState, j: int) -> None:
    """The held workers of a job are busy with it from now on."""
    t, pool = world.tally[0], world.pool
    for i in range(t.live):
        w = pool[i].live
        if pool[w].job == j:
            pool[w].state = BUSY


@compiled
def on_worker_ready(world: RunState, calendar: Calendar, w: int, now: float) -> None:
    """A boot ends: with a worker, or with an offer that vanished (billed all the same)."""
    t, pool, track, supply = world.tally[0], world.pool, world.track, world.supply
    j = pool[w].job
    if supply.vanish > 0.0 and pool[w].offer >= 0:
        luck = supply.luck[(t.vanished + t.ready_count) % supply.luck.shape[0]]
        if luck < supply.vanish:
            t.vanished += 1
            end_rent(world, w, now)
            if j >= 0:
                track[j].promised -= 1
            launch(world, calendar, now, j, 0)
            return
    start_life(world, calendar, now, w)
    if j < 0:
        t.unpromised_boots -= 1
        make_idle(world, w)
        return
    pool[w].state = HELD
    track[j].ready += 1
    if track[j].ready == world.jobs[j].gpus:
        if track[j].state == BOOKED_JOB:
            begin_booked(world, calendar, j, now)
        elif track[j].moved == 0:
            demote(world, calendar, j, now)
        else:
            t.rehomings += 1
            begin_save(world, calendar, j, now)


@compiled
def lose(world: RunState, w: int, now: float) -> None:
    """Ends the rent of a failed worker that was just made idle, before it is given away."""
    world.tally[0].idle -= 1
    world.pool[w].state = HELD
    end_rent(world, w, now)


@compiled
def on_worker_fails(
    world: RunState, calendar: Calendar, backlog: Backlog, w: int, now: float
) -> None:
    """A node dies: its rent ends, and its job falls back to its last safe point."""
    t, pool, track = world.tally[0], world.pool, world.track
    t.failures += 1
    j = pool[w].job
    if j < 0:
        end_rent(world, w, now)
        return
    if track[j].moved == 0 or pool[w].state == HELD:
        # Not at work yet: the promise is void and the next tick decides again. A
        # checkpoint already being written goes to the backlog when it is done.
        free_workers_of(world, j, PROMISED)
        lose(world, w, now)
        if track[j].state == BOOKED_JOB:
            unbook(world, j, now)
            enqueue(world, calendar, backlog, j, now)
        return
    every = world.choice[0].safe_every_s
    if track[j].state == SERVERFUL:
        done = done_by(world, j, now)
        safe = max(track[j].saved_s, math.floor(done / every) * every)
        track[j].moving_s += done - safe
        track[j].done_s = track[j].saved_s = safe
        track[j].restores = 1 if safe > 0.0 else track[j].restores
    elif track[j].state == SAVING:
        end_victim(world, j)
        track[j].moving_s += now - track[j].since_s + track[j].done_s - track[j].saved_s
        track[j].done_s = track[j].saved_s
    elif track[j].state == RESTORING:
        track[j].moving_s += now - track[j].since_s
    track[j].version += 1
    free_workers_of(world, j, ALL)
    lose(world, w, now)
    enqueue(world, calendar, backlog, j, now)


@compiled
def handle(
    world: RunState, calendar: Calendar, backlog: Backlog, event: int, subject: int, now: float
) -> None:
    """One event of the calendar whose version still holds."""
    track = world.track
    if event == SERVERLESS_READY:
        start_serverless(world, calendar, subject, now)
    elif event == JOB_ENDS:
        finish(world, subject, now)
    elif event == SAVED:
        on_saved(world, calendar, backlog, subject, now)
    elif event == RESTORED:
        track[subject].moving_s += now - track[subject].since_s
        begin_run(world, calendar, subject, now)
    elif event == PROBED:
        if track[subject].state == SERVERLESS and track[subject].promised == 0:
            decide(world, calendar, backlog, subject, now)
    elif event == WORKER_READY:
        on_worker_ready(world, calendar, subject, now)
    else:
        on_worker_fails(world, calendar, backlog, subject, now)


@compiled
def run_loop(world: RunState, up_to: int, stop_s: float = math.inf) -> int:
    """Runs until ``up_to`` jobs are done, or time is past ``stop_s``; answers how many are.

    Calling it again to go on is not supported.
    Ties in time: arrivals, then the calendar, then thresholds, then the tick.
    """
    choice, jobs, t, pool, track = (
        world.choice[0],
        world.jobs,
        world.tally[0],
        world.pool,
        world.track,
    )
    calendar = [(0.0, 0, 0, 0, 0)]
    calendar.clear()
    backlog = [(0.0, 0, 0)]
    backlog.clear()
    wishes = np.zeros(5)
    count, arrived, now = jobs.shape[0], 0, 0.0
    next_tick = 0.0
    on_demand = choice.scaling == ON_DEMAND
    if choice.scaling == STATIC:
        while launch(world, calendar, 0.0, -1, 0) >= 0:
            pass
    while t.done < up_to and now <= stop_s:
        arrival = jobs[arrived].arrive_s if arrived < count else math.inf
        planned = calendar[0][0] if len(calendar) > 0 else math.inf
        threshold = math.inf
        if choice.demotion == THRESHOLD and t.head >= 0:
            threshold = max(now, track[t.head].started_s + t.threshold_s)
        now = min(arrival, planned, threshold, next_tick)
        if arrival == now:
            if not (choice.direct and start_directly(world, calendar, backlog, arrived, now)):
                arrive(world, calendar, backlog, arrived, now)
            arrived += 1
        elif planned == now:
            _, _, event, subject, version = heapq.heappop(calendar)
            current = pool[subject].version if event >= WORKER_READY else track[subject].version
            if version != current:
                continue
            if event == NEARS:
                if track[subject].waits == FAR:
                    come_near(world, subject)
                continue
            handle(world, calendar, backlog, event, subject, now)
        elif threshold == now:
            demote_overdue(world, calendar, now)
            continue
        else:
            tick(world, calendar, backlog, now, wishes)
            next_tick += choice.tick_s
        dispatch(world, calendar, backlog, now)
        if choice.preemptive and len(backlog) > 0:
            preempt(world, calendar, backlog, now)
        if on_demand:
            while t.queued_gpus > t.idle + t.unpromised_boots:
                if launch(world, calendar, now, -1, 0) < 0:
                    break
    t.end_s = now
    cancel_boots(world, now)
    release_idle(world, now, t.idle)
    while t.live > 0:
        end_rent(world, pool[0].live, now)
    return t.done
