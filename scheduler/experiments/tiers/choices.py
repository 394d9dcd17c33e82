"""What a policy of the tiers may choose, and how its choices are set out for compiled loops."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, get_type_hints

import numpy as np


class Demotion(IntEnum):
    """When a job leaves serverless."""

    #: Never: wholly serverless.
    NEVER = 0
    #: After F seconds of run time.
    THRESHOLD = 1
    #: When the rest repays the move.
    BREAK_EVEN = 2
    #: There is no serverless tier; jobs enter the backlog.
    SERVERFUL_ONLY = 3


class Scaling(IntEnum):
    """How many serverful workers there are."""

    PRINTED = 0
    CORRECTED = 1
    #: Booked per job by the break-even rule; the queue guard for the rest.
    BOOKED = 2
    #: All of the cap from the first second to the last.
    STATIC = 3
    #: One per waiting job up to the cap, released when idle.
    ON_DEMAND = 4
    #: Kubernetes horizontal autoscaler on utilisation.
    HPA = 5
    #: The same, one worker a tick at most.
    HPA_ONE = 6


class Order(IntEnum):
    """Which waiting job is first."""

    DEADLINE = 0
    SHORTEST = 1
    LEAST_ATTAINED = 2
    #: Deadline, or shortest while the tier is overloaded (``edf``).
    DEADLINE_OR_SHORTEST = 3


class Choice(NamedTuple):
    """A policy as the loop reads it (see ``policies.py`` for the names)."""

    demotion: int
    scaling: int
    order: int
    preemptive: bool
    #: Algorithm 1 moves the threshold.
    adaptive: bool
    #: Equation 1 as printed.
    printed_demand: bool
    #: Running jobs move on to much cheaper offers, and a full tier renews its rents.
    rehomes: bool
    #: A job may begin on workers, without serverless; its work is known from the start.
    direct: bool
    #: Idle workers are kept while a later job is expected to repay their rent.
    holds: bool
    #: A job moves on only while its pauses come to no more, seconds.
    most_pause_s: float
    #: Largest share of the surplus one job may take to stay on serverless.
    share: float
    #: Cheapest offers kept for jobs of at least ``long_s``.
    reserved_offers: int
    long_s: float
    cap: int
    tick_s: float
    windows: int
    gain_up: float
    rate_up_s: float
    gain_down: float
    rate_down_s: float
    threshold_s: float
    threshold_min_s: float
    threshold_max_s: float
    probe_s: float
    checkpoint_s: float
    restore_s: float
    delay_price: float
    #: The same for a job that is moved from worker to worker.
    rehome_delay_price: float
    #: Share of what cheaper rents save that is added to the surplus.
    saved_share: float
    serverless_price: float
    conventional_price: float
    serverless_boot_s: float
    marketplace_boot_s: float
    conventional_boot_s: float
    #: A node that fails loses what was done since the last multiple of this.
    safe_every_s: float


CHOICE = np.dtype(
    [
        (name, {int: np.int64, bool: np.bool_, float: np.float64}[kind])
        for name, kind in get_type_hints(Choice).items()
    ]
)
