"""What a job has done, has left and has taught, inside the compiled loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.experiments.tiers.compiled import compiled
from scheduler.experiments.tiers.state import JobStage
from scheduler.tiers import break_even, hazard

if TYPE_CHECKING:
    from scheduler.experiments.tiers.state import RunState

SERVERLESS, SERVERFUL = int(JobStage.SERVERLESS), int(JobStage.SERVERFUL)

#: Attained service at which Tiresias-L lowers a job's queue, seconds.
FIRST_QUEUE_S = 300.0
SECOND_QUEUE_S = 3600.0

length_class = compiled(hazard.find_length_class)
observe = compiled(hazard.observe)
age_bin = compiled(hazard.find_age_bin)
hazard_rate = compiled(hazard.compute_hazard_rate)
expected_remaining_s = compiled(break_even.estimate_remaining_s)


@compiled
def done_by(world: RunState, j: int, now: float) -> float:
    """Work finished by now, seconds; running states only add the open stretch."""
    track = world.track
    if track[j].state == SERVERLESS or track[j].state == SERVERFUL:
        return track[j].done_s + now - track[j].since_s
    return track[j].done_s


@compiled
def learn(world: RunState, j: int, now: float, died: bool) -> None:
    """Counts what job ``j`` lived through since it was last looked at."""
    lived = done_by(world, j, now)
    seen = world.track[j].seen_s
    if died or lived > seen:
        observe(
            world.learned.deaths,
            world.learned.exposure_s,
            length_class(world.jobs[j].predicted_s),
            min(seen, lived),
            lived,
            died,
        )
        world.track[j].seen_s = max(seen, lived)


@compiled
def expected_left_s(world: RunState, j: int, now: float) -> float:
    """Mean remaining run time of a running job that may die early."""
    done = done_by(world, j, now)
    predicted = world.jobs[j].predicted_s
    rate = hazard_rate(
        world.learned.deaths, world.learned.exposure_s, length_class(predicted), age_bin(done)
    )
    return expected_remaining_s(predicted - done, rate)


@compiled
def attained_queue(attained_s: float) -> int:
    """Tiresias-L's queue of a job by its attained service."""
    if attained_s < FIRST_QUEUE_S:
        return 0
    return 1 if attained_s < SECOND_QUEUE_S else 2
