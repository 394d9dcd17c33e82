"""The simulator's state: flat arrays, so that one loop drives any policy at speed.

Times are seconds since the start of the run, prices dollars per GPU hour. ``j``
indexes jobs in order of arrival, ``w`` worker slots (a slot is used again after
its worker is released), ``m`` marketplace offers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.tiers.choices import CHOICE, Choice
from scheduler.tiers.hazard import AGE_BINS, LENGTH_CLASSES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Fields are reached as attributes of an element, which the checker cannot follow.
Records = Any
#: Worker slots of a run without a cap.
UNLIMITED = 100_000


class JobStage(IntEnum):
    """Where a job stands."""

    AWAITED = 0
    #: Its serverless worker boots.
    STARTING = 1
    SERVERLESS = 2
    #: Pausing to write a checkpoint, before it leaves its worker.
    SAVING = 3
    QUEUED = 4
    RESTORING = 5
    SERVERFUL = 6
    DONE = 7
    #: Its first workers boot; it has not run.
    BOOKED = 8


class Worker(IntEnum):
    """Where a worker slot stands."""

    EMPTY = 0
    BOOTING = 1
    IDLE = 2
    #: Ready and kept for a job that has not come over yet.
    HELD = 3
    BUSY = 4


class TierEvent(IntEnum):
    """What the calendar holds besides arrivals, ticks and thresholds."""

    SERVERLESS_READY = 0
    JOB_ENDS = 1
    SAVED = 2
    RESTORED = 3
    PROBED = 4
    #: The latest start of a waiting job comes into the longest window.
    NEARS = 5
    #: Those from here on are a worker's, not a job's.
    WORKER_READY = 6
    WORKER_FAILS = 7


class Wait(IntEnum):
    """How a waiting job is counted into the demand (``demands.py``)."""

    NOT = 0
    FAR = 1
    NEAR = 2
    LATE = 3


#: What a workload says of a job.
JOB = np.dtype(
    [
        ("arrive_s", np.float64),
        #: Run time until the job ends, at its end or by dying early.
        ("run_s", np.float64),
        #: Run time the job would have if it did not die; what policies know.
        ("predicted_s", np.float64),
        ("due_s", np.float64),
        ("gpus", np.int64),
        ("serverless_boot_s", np.float64),
    ]
)
#: What the run keeps of a job.
TRACK = np.dtype(
    [
        ("state", np.int64),
        #: Guards the calendar: an event with another version is void.
        ("version", np.int64),
        #: Work done when the present stretch began, and when it began.
        ("done_s", np.float64),
        ("since_s", np.float64),
        #: Work safe in a checkpoint.
        ("saved_s", np.float64),
        #: Start on serverless.
        ("started_s", np.float64),
        #: Age up to which exposure to early death is counted.
        ("seen_s", np.float64),
        ("queued_s", np.float64),
        ("waited_s", np.float64),
        ("moving_s", np.float64),
        ("booting_s", np.float64),
        ("serverless_s", np.float64),
        ("finish_s", np.float64),
        #: Its allowance (below zero: not yet known), and what it is planned to take.
        ("credit", np.float64),
        ("planned", np.float64),
        #: Terms the allowance was reckoned with.
        ("premium", np.float64),
        ("move_cost", np.float64),
        ("budget_s", np.float64),
        #: Scratch: sum of its workers' prices.
        ("paid", np.float64),
        #: Workers promised by just-in-time hand-off, and how many are ready.
        ("promised", np.int64),
        ("ready", np.int64),
        #: 1 once the job has left serverless or never was there.
        ("moved", np.int64),
        #: 1 if a restore is due at its next start.
        ("restores", np.int64),
        #: 1 while it saves because a waiting job preempts it.
        ("victim", np.int64),
        #: Neighbours in the list of jobs on serverless, in order of start.
        ("after", np.int64),
        ("before", np.int64),
        #: Column of its own: the jobs that hold serverful workers, dense.
        ("serverful", np.int64),
        #: The job's place in that column.
        ("place", np.int64),
        #: How it is counted while it waits, its latest start, and what it needs then.
        ("waits", np.int64),
        ("latest_s", np.float64),
        ("needed_s", np.float64),
        #: Column of its own: the waiting jobs that are near, dense; and the place.
        ("near", np.int64),
        ("near_place", np.int64),
    ]
)
#: A worker slot.
SLOT = np.dtype(
    [
        ("state", np.int64),
        ("version", np.int64),
        ("job", np.int64),
        #: The marketplace offer, or -1 for the conventional cloud.
        ("offer", np.int64),
        ("price", np.float64),
        ("requested_s", np.float64),
        #: Column of its own: the live workers, dense.
        ("live", np.int64),
        #: The worker's place in that column.
        ("place", np.int64),
        #: Column of its own: the stack of empty slots.
        ("empty", np.int64),
    ]
)
#: One row per tick.
MOMENT = np.dtype(
    [
        ("time_s", np.float64),
        ("queued", np.int64),
        ("serverful", np.int64),
        ("serverless", np.int64),
        ("threshold_s", np.float64),
        ("pressure", np.float64),
        #: Mean of the prices paid per serverful GPU hour.
        ("price", np.float64),
    ]
)


class DrawnSupply(NamedTuple):
    """Offers and random times, drawn before the run: the same for every policy."""

    #: Offer prices by (time step, offer); infinite while an offer is gone.
    offers: Floats
    step_s: float
    #: Start-up times, taken in order of launch and round again.
    marketplace_boots_s: Floats
    conventional_boots_s: Floats
    #: Uniform draws: a marketplace boot below ``vanish`` ends without a worker.
    luck: Floats
    vanish: float
    #: Lives of workers from ready to failure, seconds; infinite without failures.
    lives_s: Floats


class LearnedTables(NamedTuple):
    """Tables of ``scheduler.tiers.hazard``."""

    deaths: Floats
    exposure_s: Floats


#: Counters that change during a run.
TALLY = np.dtype(
    [
        ("seq", np.int64),
        ("done", np.int64),
        ("head", np.int64),
        ("tail", np.int64),
        ("serverful_jobs", np.int64),
        ("near", np.int64),
        ("queued_gpus", np.int64),
        ("live", np.int64),
        ("idle", np.int64),
        ("unpromised_boots", np.int64),
        ("empty", np.int64),
        ("saving_victims", np.int64),
        ("overloaded", np.int64),
        ("marketplace_launches", np.int64),
        ("conventional_launches", np.int64),
        ("ready_count", np.int64),
        ("vanished", np.int64),
        ("failures", np.int64),
        ("demotions", np.int64),
        ("preemptions", np.int64),
        ("rehomings", np.int64),
        ("renewals", np.int64),
        #: Jobs that began on workers.
        ("direct_starts", np.int64),
        #: What :mod:`scheduler.tiers.holding` knows: when workers were last taken, the mean
        #: time between two takes, and how long they are used.
        ("taken_s", np.float64),
        ("gap_s", np.float64),
        ("use_s", np.float64),
        ("takes", np.int64),
        ("peak", np.int64),
        ("serverless_gpus", np.int64),
        ("peak_serverless", np.int64),
        ("ticks", np.int64),
        ("threshold_s", np.float64),
        ("pressure", np.float64),
        ("surplus", np.float64),
        ("serverless_usd", np.float64),
        ("marketplace_usd", np.float64),
        ("conventional_usd", np.float64),
        ("end_s", np.float64),
        #: Mean price of the live workers, and 1 while it is known.
        ("paid_price", np.float64),
        ("paid_known", np.int64),
    ]
)


class RunState(NamedTuple):
    """Everything one run reads and writes; record arrays, to keep signatures short."""

    #: One record of ``CHOICE``.
    choice: Records
    jobs: Records
    supply: DrawnSupply
    track: Records
    pool: Records
    #: 1 while an offer is rented.
    taken: Ints
    #: Sums over late jobs (``demands.py``).
    late: Ints
    learned: LearnedTables
    series: Records
    #: One record of ``TALLY``.
    tally: Records


def new_world(
    choice: Choice, jobs: Records, supply: DrawnSupply, *, record_ticks: int = 0
) -> RunState:
    """A world at time zero: no job has arrived, no worker is rented."""
    slots = min(choice.cap, UNLIMITED)
    track = records(len(jobs), TRACK)
    track["finish_s"] = np.nan
    track["credit"] = -1.0
    for links in ("after", "before", "place"):
        track[links] = -1
    pool = records(slots, SLOT)
    for links in ("job", "offer", "place"):
        pool[links] = -1
    pool["empty"] = np.arange(slots - 1, -1, -1)
    chosen = records(1, CHOICE)
    chosen[0] = tuple(choice)
    tally = records(1, TALLY)
    tally["empty"] = slots
    tally["head"] = tally["tail"] = -1
    tally["threshold_s"] = choice.threshold_s
    learned = LearnedTables(
        np.zeros((LENGTH_CLASSES, AGE_BINS)), np.zeros((LENGTH_CLASSES, AGE_BINS))
    )
    return RunState(
        choice=chosen,
        jobs=jobs,
        supply=supply,
        track=track,
        pool=pool,
        taken=np.zeros(supply.offers.shape[1], np.int64),
        late=np.zeros((2, choice.windows + 1), np.int64),
        learned=learned,
        series=records(record_ticks, MOMENT),
        tally=tally,
    )


def records(count: int, kind: np.dtype[np.void]) -> Records:
    """``count`` zeroed records whose fields are attributes, compiled or not."""
    return np.zeros(count, kind).view(np.recarray)
