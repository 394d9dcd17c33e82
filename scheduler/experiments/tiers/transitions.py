"""How a job goes from one state to the next, inside the compiled loop."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from scheduler.experiments.tiers import edf
from scheduler.experiments.tiers.choices import Demotion, Order
from scheduler.experiments.tiers.compiled import compiled
from scheduler.experiments.tiers.demands import begin_wait, end_wait
from scheduler.experiments.tiers.state import JobStage, TierEvent, Worker
from scheduler.experiments.tiers.work import attained_queue, done_by, learn
from scheduler.experiments.tiers.workers import (
    ALL,
    Calendar,
    cheapest_idle,
    end_rent,
    free_workers_of,
    launch,
    next_offer,
    post,
    price_of,
    take_idle,
)
from scheduler.tiers import allowance, demotion

if TYPE_CHECKING:
    from scheduler.experiments.tiers.state import RunState

#: (key, tie, job)
Backlog = list[tuple[float, int, int]]

STARTING, SERVERLESS = int(JobStage.STARTING), int(JobStage.SERVERLESS)
SAVING, QUEUED, RESTORING = int(JobStage.SAVING), int(JobStage.QUEUED), int(JobStage.RESTORING)
SERVERFUL, DONE = int(JobStage.SERVERFUL), int(JobStage.DONE)
SERVERLESS_READY, JOB_ENDS = int(TierEvent.SERVERLESS_READY), int(TierEvent.JOB_ENDS)
SAVED, RESTORED, PROBED = int(TierEvent.SAVED), int(TierEvent.RESTORED), int(TierEvent.PROBED)
SHORTEST, LEAST_ATTAINED = int(Order.SHORTEST), int(Order.LEAST_ATTAINED)
EITHER = int(Order.DEADLINE_OR_SHORTEST)
SERVERFUL_ONLY, BREAK_EVEN = int(Demotion.SERVERFUL_ONLY), int(Demotion.BREAK_EVEN)
BUSY = int(Worker.BUSY)

compute_renewal_saving = compiled(demotion.compute_renewal_saving)
allowance_of = compiled(allowance.compute_allowance)
backlog_key = compiled(edf.compute_backlog_key)


@compiled
def priority(world: RunState, j: int) -> float:
    """The backlog's key of a job that is not running."""
    left = world.jobs[j].predicted_s - world.track[j].done_s
    if world.choice[0].order == EITHER:
        return backlog_key(world.jobs[j].due_s, left, world.tally[0].overloaded == 1)
    if world.choice[0].order == SHORTEST:
        return left
    if world.choice[0].order == LEAST_ATTAINED:
        return float(attained_queue(world.track[j].done_s))
    return world.jobs[j].due_s


@compiled
def enqueue(world: RunState, calendar: Calendar, backlog: Backlog, j: int, now: float) -> None:
    """The job waits for workers of the serverful tier."""
    track = world.track
    track[j].state = QUEUED
    track[j].queued_s = now
    world.tally[0].queued_gpus += world.jobs[j].gpus
    stop_work(world, j)
    begin_wait(world, calendar, j, now)
    heapq.heappush(backlog, (priority(world, j), j, j))


@compiled
def reorder(world: RunState, backlog: Backlog, overloaded: bool) -> None:
    """Sorts the backlog again when the tier becomes overloaded or no longer is."""
    world.tally[0].overloaded = 1 if overloaded else 0
    for i in range(len(backlog)):
        j = backlog[i][2]
        backlog[i] = (priority(world, j), j, j)
    heapq.heapify(backlog)


@compiled
def go_to_work(world: RunState, j: int) -> None:
    """Adds a job to the dense list of those that hold serverful workers."""
    t, track = world.tally[0], world.track
    if track[j].place < 0:
        track[j].place = t.serverful_jobs
        track[t.serverful_jobs].serverful = j
        t.serverful_jobs += 1


@compiled
def stop_work(world: RunState, j: int) -> None:
    """Takes a job out of that list, if it is there."""
    t, track = world.tally[0], world.track
    if track[j].place < 0:
        return
    last = track[t.serverful_jobs - 1].serverful
    track[track[j].place].serverful = last
    track[last].place = track[j].place
    track[j].place = -1
    t.serverful_jobs -= 1


@compiled
def arrive(world: RunState, calendar: Calendar, backlog: Backlog, j: int, now: float) -> None:
    """A job is admitted: to serverless at once, or to the backlog without that tier."""
    t, jobs, track = world.tally[0], world.jobs, world.track
    if world.choice[0].demotion == SERVERFUL_ONLY:
        track[j].moved = 1
        enqueue(world, calendar, backlog, j, now)
        return
    track[j].state = STARTING
    t.serverless_gpus += jobs[j].gpus
    t.peak_serverless = max(t.peak_serverless, t.serverless_gpus)
    post(world, calendar, now + jobs[j].serverless_boot_s, SERVERLESS_READY, j, 0)


@compiled
def start_serverless(world: RunState, calendar: Calendar, j: int, now: float) -> None:
    """The first step on serverless; a gang above the cap can never leave."""
    t, jobs, track = world.tally[0], world.jobs, world.track
    track[j].state = SERVERLESS
    track[j].since_s = track[j].started_s = now
    track[j].booting_s = now - jobs[j].arrive_s
    post(world, calendar, now + jobs[j].run_s, JOB_ENDS, j, track[j].version)
    if jobs[j].gpus > world.choice[0].cap:
        return
    track[j].before = t.tail
    if t.tail >= 0:
        track[t.tail].after = j
    else:
        t.head = j
    t.tail = j
    if world.choice[0].demotion == BREAK_EVEN:
        post(world, calendar, now + world.choice[0].probe_s, PROBED, j, track[j].version)


@compiled
def unlist(world: RunState, j: int) -> None:
    """Takes a job out of the list of jobs on serverless, if it is there."""
    t, track = world.tally[0], world.track
    if t.head != j and track[j].before < 0:
        return
    before, after = track[j].before, track[j].after
    if before >= 0:
        track[before].after = after
    else:
        t.head = after
    if after >= 0:
        track[after].before = before
    else:
        t.tail = before
    track[j].before = track[j].after = -1


@compiled
def bring(world: RunState, j: int, premium: float, move_cost: float) -> None:
    """Credits the allowance of a job, once, when its run time is first known."""
    t, jobs, track = world.tally[0], world.jobs, world.track
    track[j].premium = premium
    track[j].move_cost = move_cost
    track[j].budget_s = t.threshold_s
    track[j].credit = jobs[j].gpus * allowance_of(
        jobs[j].predicted_s, t.threshold_s, premium, move_cost
    )
    t.surplus += track[j].credit


@compiled
def plan(world: RunState, j: int, amount: float) -> None:
    """Debits what a job is now planned to cost instead of what it was before."""
    world.tally[0].surplus += world.track[j].planned - amount
    world.track[j].planned = amount


@compiled
def settle(world: RunState, j: int) -> None:
    """Credits an ended job with what Algorithm 1 would truly have spent on it."""
    t, jobs, track = world.tally[0], world.jobs, world.track
    if track[j].credit >= 0.0 and jobs[j].run_s < jobs[j].predicted_s:
        true = jobs[j].gpus * allowance_of(
            jobs[j].run_s, track[j].budget_s, track[j].premium, track[j].move_cost
        )
        t.surplus += true - track[j].credit
        track[j].credit = true


@compiled
def leave_serverless(world: RunState, j: int, now: float) -> None:
    """Ends and bills the serverless worker of a job: request to release."""
    t, jobs = world.tally[0], world.jobs
    spent = (now - jobs[j].arrive_s) * jobs[j].gpus
    world.track[j].serverless_s = spent
    t.serverless_usd += spent / 3600.0 * world.choice[0].serverless_price
    t.serverless_gpus -= jobs[j].gpus
    if world.track[j].credit >= 0.0:
        extra = 0.0 if world.track[j].state == SERVERLESS else world.track[j].move_cost
        plan(world, j, spent * world.track[j].premium + extra * jobs[j].gpus)
    unlist(world, j)


@compiled
def begin_save(world: RunState, calendar: Calendar, j: int, now: float) -> None:
    """The job pauses where it runs and writes a checkpoint."""
    track = world.track
    learn(world, j, now, False)
    track[j].done_s = done_by(world, j, now)
    track[j].state = SAVING
    track[j].since_s = now
    track[j].version += 1
    post(world, calendar, now + world.choice[0].checkpoint_s, SAVED, j, track[j].version)


@compiled
def demote(world: RunState, calendar: Calendar, j: int, now: float) -> None:
    """A job on serverless starts to leave it."""
    world.tally[0].demotions += 1
    unlist(world, j)
    begin_save(world, calendar, j, now)


@compiled
def begin_restore(world: RunState, calendar: Calendar, j: int, now: float) -> None:
    """The job's workers are all its own; it restores, or starts where nothing is saved."""
    track = world.track
    go_to_work(world, j)
    track[j].promised = track[j].ready = 0
    if track[j].restores == 1:
        track[j].state = RESTORING
        track[j].since_s = now
        post(world, calendar, now + world.choice[0].restore_s, RESTORED, j, track[j].version)
    else:
        begin_run(world, calendar, j, now)


@compiled
def begin_run(world: RunState, calendar: Calendar, j: int, now: float) -> None:
    """Steps on serverful workers."""
    track = world.track
    track[j].state = SERVERFUL
    track[j].since_s = now
    left = world.jobs[j].run_s - track[j].done_s
    post(world, calendar, now + left, JOB_ENDS, j, track[j].version)


@compiled
def finish(world: RunState, j: int, now: float) -> None:
    """The job ended, at its end or by dying; its workers are free."""
    t, jobs, track = world.tally[0], world.jobs, world.track
    learn(world, j, now, jobs[j].run_s < jobs[j].predicted_s)
    settle(world, j)
    if track[j].state == SERVERLESS:
        leave_serverless(world, j, now)
        if track[j].promised > 0:
            free_workers_of(world, j, ALL)
    else:
        free_workers_of(world, j, ALL)
        stop_work(world, j)
    track[j].state = DONE
    track[j].version += 1
    track[j].finish_s = now
    t.done += 1


@compiled
def renew(world: RunState, calendar: Calendar, j: int, now: float) -> bool:
    """Ends the rent of the worker a waiting job would get if a cheaper one repays the wait.

    Only for a full tier, whose prices would otherwise hold for good.
    """
    choice, pool, t = world.choice[0], world.pool, world.tally[0]
    offer = next_offer(world, now, 0)
    if t.empty > 0 or offer < 0:
        return False
    w = cheapest_idle(world)
    saved = compute_renewal_saving(
        world.jobs[j].predicted_s - world.track[j].done_s,
        choice.marketplace_boot_s,
        pool[w].price,
        price_of(world, now, offer),
        choice.rehome_delay_price,
    )
    if saved < 0.0:
        return False
    end_rent(world, w, now)
    launch(world, calendar, now, -1, 0)
    t.renewals += 1
    save(world, saved)
    return True


@compiled
def save(world: RunState, amount: float) -> None:
    """Gives the surplus its share of what a cheaper rent saves."""
    world.tally[0].surplus += world.choice[0].saved_share * max(0.0, amount)


@compiled
def dispatch(world: RunState, calendar: Calendar, backlog: Backlog, now: float) -> None:
    """Gives idle workers to the backlog in order; the head is never overtaken."""
    t, track, choice = world.tally[0], world.track, world.choice[0]
    while len(backlog) > 0:
        j = backlog[0][2]
        need = world.jobs[j].gpus
        if t.idle < need:
            return
        if choice.rehomes and need == 1 and renew(world, calendar, j, now):
            continue
        heapq.heappop(backlog)
        t.queued_gpus -= need
        end_wait(world, j)
        track[j].waited_s += now - track[j].queued_s
        for _ in range(need):
            take_idle(world, j, BUSY)
        begin_restore(world, calendar, j, now)


@compiled
def worst_running(world: RunState, now: float) -> int:
    """The running serverful job a preemptive order would stop first, or -1."""
    t, jobs, track = world.tally[0], world.jobs, world.track
    worst, worst_key = -1, -math.inf
    for i in range(t.serverful_jobs):
        j = track[i].serverful
        if track[j].state == SERVERFUL:
            done = done_by(world, j, now)
            if world.choice[0].order == SHORTEST:
                key = jobs[j].predicted_s - done
            else:
                key = attained_queue(done) + done * 1e-12
            if key > worst_key or (key == worst_key and j < worst):
                worst, worst_key = j, key
    return worst


@compiled
def preempt(world: RunState, calendar: Calendar, backlog: Backlog, now: float) -> None:
    """Stops running jobs that waiting ones beat even after paying for the switch."""
    t, choice, jobs, track = world.tally[0], world.choice[0], world.jobs, world.track
    while len(backlog) > 0 and t.saving_victims + t.idle < t.queued_gpus:
        head = backlog[0][2]
        victim = worst_running(world, now)
        if victim < 0 or jobs[victim].gpus + t.idle < jobs[head].gpus:
            return
        if choice.order == SHORTEST:
            left = jobs[victim].predicted_s - done_by(world, victim, now)
            better = backlog[0][0] + choice.checkpoint_s + choice.restore_s < left
        else:
            better = backlog[0][0] < attained_queue(done_by(world, victim, now))
        if not better:
            return
        begin_save(world, calendar, victim, now)
        track[victim].victim = 1
        t.preemptions += 1
        t.saving_victims += jobs[victim].gpus
