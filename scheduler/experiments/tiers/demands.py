"""D(t, T) of equations 1 and 2, kept up to date for jobs that wait.

The demand of a job at work changes all the time, but there are no more of those than
workers. The demand of a waiting job is a ramp. It does not move until the job's latest
start comes into the longest window, slides through that window, and stops once the latest
start has passed. So a waiting job is *far* (nothing to count), *near* (counted alone, for as
many ticks as there are windows) or *late* (counted with the others), and a long backlog costs
nothing at a tick. Sums over late jobs are whole
numbers of microseconds (2**-20 s), so that adding and removing leaves no trace.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from scheduler.experiments.tiers.compiled import compiled
from scheduler.experiments.tiers.state import JobStage, TierEvent, Wait
from scheduler.experiments.tiers.workers import Calendar, post

if TYPE_CHECKING:
    from scheduler.experiments.tiers.state import Floats, RunState

SERVERFUL, QUEUED, RESTORING = (
    int(JobStage.SERVERFUL),
    int(JobStage.QUEUED),
    int(JobStage.RESTORING),
)
NOT, FAR, NEAR, LATE = int(Wait.NOT), int(Wait.FAR), int(Wait.NEAR), int(Wait.LATE)
NEARS = int(TierEvent.NEARS)

#: Parts of a second in the sums over late jobs.
FINE = 2.0**20
#: Longer work is cut in those sums, which are integers.
LONGEST_S = 1e9
#: Rows of ``RunState.late``: GPUs of late jobs, and their work, by the window their ramp
#: ends in; the last column holds those that end in none.
GPUS, WORK = 0, 1


@compiled
def still_needed_s(
    state: int, left: float, since_s: float, restores: int, restore_s: float, now: float
) -> float:
    """Seconds a job of the serverful tier still needs there, a restore included.

    ``left`` is its work left when the present stretch began, at ``since_s``.
    """
    if state == SERVERFUL:
        return max(0.0, left - (now - since_s))
    if state == RESTORING:
        return max(0.0, left) + max(0.0, since_s + restore_s - now)
    return max(0.0, left) + (restore_s if restores == 1 else 0.0)


@compiled
def first_window(at_s: float, step_s: float, count: int) -> int:
    """The first window that reaches ``at_s`` seconds from now; ``count`` if none does."""
    # Compared as floats: a time too far away for an integer is no window either.
    first = math.ceil(at_s / step_s) - 1.0
    return count if first >= count else max(0, int(first))


@compiled
def begin_wait(world: RunState, calendar: Calendar, j: int, now: float) -> None:
    """A job that was just queued is far until its latest start comes near."""
    choice, track = world.choice[0], world.track
    left = world.jobs[j].predicted_s - track[j].done_s
    if choice.printed_demand:
        track[j].needed_s = max(0.0, left)
        track[j].latest_s = world.jobs[j].due_s
    else:
        track[j].needed_s = still_needed_s(
            QUEUED, left, now, track[j].restores, choice.restore_s, now
        )
        track[j].latest_s = world.jobs[j].due_s - track[j].needed_s
    nears = track[j].latest_s - choice.windows * choice.tick_s
    if nears > now:
        track[j].waits = FAR
        post(world, calendar, nears, NEARS, j, track[j].version)
    else:
        come_near(world, j)


@compiled
def come_near(world: RunState, j: int) -> None:
    """From now on the job is counted one by one."""
    t, track = world.tally[0], world.track
    track[j].waits = NEAR
    track[j].near_place = t.near
    track[t.near].near = j
    t.near += 1


@compiled
def end_wait(world: RunState, j: int) -> None:
    """The job was given workers: it no longer counts as waiting."""
    t, track = world.tally[0], world.track
    if track[j].waits == NEAR:
        last = track[t.near - 1].near
        track[track[j].near_place].near = last
        track[last].near_place = track[j].near_place
        t.near -= 1
    elif track[j].waits == LATE:
        count_late(world, j, -1)
    track[j].waits = NOT


@compiled
def count_late(world: RunState, j: int, sign: int) -> None:
    """Adds a job whose latest start has passed to the sums, or takes it out again."""
    choice, late, needed = world.choice[0], world.late, world.track[j].needed_s
    gpus, last = world.jobs[j].gpus, late.shape[1] - 1
    ends = last if choice.printed_demand else first_window(needed, choice.tick_s, last)
    late[GPUS, ends] += sign * gpus
    # Work that ends in no window is not asked for and would only make numbers large.
    if ends < last or choice.printed_demand:
        late[WORK, ends] += sign * gpus * round(min(needed, LONGEST_S) * FINE)


@compiled
def demands(world: RunState, now: float) -> Floats:
    """D(t, T) of every window: jobs at work, near ones, and the sums of the late.

    The vectors of ``scheduler.tiers.demand`` answer the same; a ramp becomes a
    change of slope and of offset at the first window it reaches, so the cost does
    not grow with jobs times windows.
    """
    choice, jobs, track, t = world.choice[0], world.jobs, world.track, world.tally[0]
    printed, step, restore_s = choice.printed_demand, choice.tick_s, choice.restore_s
    count = int(choice.windows)
    slope, offset = np.zeros(count + 1), np.zeros(count + 1)
    at_work = t.serverful_jobs
    i = 0
    while i < at_work + t.near:
        j = track[i].serverful if i < at_work else track[i - at_work].near
        state = track[j].state
        if state == QUEUED and track[j].latest_s <= now:
            # Another job takes its place in the list.
            grow_late(world, j)
            continue
        i += 1
        left = jobs[j].predicted_s - track[j].done_s
        gpus, due_in = float(jobs[j].gpus), jobs[j].due_s - now
        if printed:
            if state == SERVERFUL:
                left -= now - track[j].since_s
            offset[first_window(due_in, step, count)] -= max(0.0, left) * gpus
            continue
        left = still_needed_s(state, left, track[j].since_s, track[j].restores, restore_s, now)
        start = max(0.0, due_in - left)
        first, last = first_window(start, step, count), first_window(start + left, step, count)
        slope[first] += gpus
        offset[first] += gpus * start
        slope[last] -= gpus
        offset[last] -= gpus * (start + left)
    add_late(world, slope, offset)
    total = np.zeros(count)
    rising, shift = 0.0, 0.0
    for k in range(count):
        rising += slope[k]
        shift += offset[k]
        total[k] = max(0.0, rising * (k + 1) * step - shift)
    return total


@compiled
def grow_late(world: RunState, j: int) -> None:
    """The latest start of a near job has passed."""
    end_wait(world, j)
    world.track[j].waits = LATE
    count_late(world, j, 1)


@compiled
def add_late(world: RunState, slope: Floats, offset: Floats) -> None:
    """Late jobs all begin now; each ends in the window it was sorted into."""
    late = world.late
    for k in range(slope.shape[0]):
        if world.choice[0].printed_demand:
            offset[0] -= late[WORK, k] / FINE
        else:
            slope[0] += late[GPUS, k]
            slope[k] -= late[GPUS, k]
            offset[k] -= late[WORK, k] / FINE
