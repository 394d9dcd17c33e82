"""What a run would cost that knew everything, waited for nothing and paid nothing to move.

Every job runs from its arrival to its end on one GPU each of its gang. Workers need no boot, a
job may change its worker at any time for nothing, and a rent holds its price: the cheapest rents
are held, one is exchanged as soon as an offer is cheaper, and the dearest one ends when there is
one too many. It is the yardstick of the report: no policy with boots and pauses is as quick, and
what one costs more is the price of not knowing and of moving.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.tiers.run import TierOutcome, prepare
from scheduler.experiments.tiers.state import DrawnSupply, Records
from scheduler.experiments.tiers.supply import SupplyRules
from scheduler.experiments.tiers.workload import OwnerRules, Workload
from scheduler.tiers.rules import TierRules

Floats = NDArray[np.float64]
#: What its outcomes are named.
NAME = "clairvoyant"


def simulate_clairvoyant(
    *,
    workload: Workload,
    seed: int,
    rules: TierRules | None = None,
    supply: SupplyRules | None = None,
    owners: OwnerRules | None = None,
) -> TierOutcome:
    """Run the yardstick on the jobs and the market that every policy of a seed meets.

    Parameters
    ----------
    workload, seed, rules, supply, owners
        As in :func:`~scheduler.experiments.tiers.run.simulate`.
    """
    world = prepare(
        workload=workload,
        policy="serverless-only",
        seed=seed,
        cap=None,
        rules=rules,
        supply=supply,
        owners=owners,
    )
    jobs = world.jobs
    conventional = float(world.choice["conventional_price"][0])
    marketplace_usd, conventional_usd = rent_cheapest(jobs, world.supply, conventional=conventional)
    jct = np.array(jobs.run_s, dtype=np.float64)
    p50, p95 = np.percentile(jct, [50, 95])
    return TierOutcome(
        policy=NAME,
        workload=workload.name,
        seed=seed,
        cap=None,
        jobs=len(jct),
        jct_s=jct,
        mean_jct_s=float(jct.mean()),
        p50_jct_s=float(p50),
        p95_jct_s=float(p95),
        misses=int((jobs.arrive_s + jct > jobs.due_s).sum()),
        serverless_usd=0.0,
        marketplace_usd=marketplace_usd,
        conventional_usd=conventional_usd,
        wholly_serverless=0.0,
        waiting_s=0.0,
        boot_s=0.0,
        queue_s=0.0,
        moving_s=0.0,
        peak_serverful=0,
        peak_serverless=0,
        demotions=0,
        preemptions=0,
        vanished_offers=0,
        node_failures=0,
        end_s=float((jobs.arrive_s + jct).max()),
    )


def rent_cheapest(
    jobs: Records, supply: DrawnSupply, *, conventional: float
) -> tuple[float, float]:
    """Give what the rents cost on the marketplace and beyond it, in dollars.

    Parameters
    ----------
    jobs : records
        Arrivals, true run times and GPUs (``state.JOB``).
    supply : DrawnSupply
        The market every policy of the seed meets.
    conventional : float
        Dollars per GPU hour beyond the marketplace.
    """
    starts = np.asarray(jobs.arrive_s, dtype=np.float64)
    ends = starts + np.asarray(jobs.run_s, dtype=np.float64)
    times = np.concatenate([starts, ends])
    gpus = np.concatenate([jobs.gpus, -jobs.gpus])
    order = np.argsort(times, kind="stable")
    offers, step_s = supply.offers, supply.step_s
    #: Held rents, dearest first: (-price, offer).
    held: list[tuple[float, int]] = []
    taken: set[int] = set()
    #: GPUs of the conventional cloud.
    plain = 0
    rate = now = 0.0
    on_market = beyond = 0.0
    free: list[tuple[float, int]] = []
    step = -1

    def list_free(at: int) -> list[tuple[float, int]]:
        row = offers[at % offers.shape[0]]
        found = [
            (float(row[m]), m)
            for m in np.flatnonzero(row < conventional).tolist()
            if m not in taken
        ]
        heapq.heapify(found)
        return found

    def rent(price: float, offer: int) -> float:
        heapq.heappush(held, (-price, offer))
        taken.add(offer)
        return price

    position, count, last = 0, len(times), float(times[order[-1]])
    while now < last:
        at = int(now / step_s)
        if at != step:
            step, free = at, list_free(at)
        while position < count and times[order[position]] <= now:
            change = int(gpus[order[position]])
            position += 1
            for _ in range(max(0, change)):
                if free:
                    price, offer = heapq.heappop(free)
                    rate += rent(price, offer)
                else:
                    plain += 1
            for _ in range(max(0, -change)):
                if plain:
                    plain -= 1
                else:
                    price, offer = heapq.heappop(held)
                    rate += price
                    taken.discard(offer)
                    listed = float(offers[step % offers.shape[0], offer])
                    if listed < conventional:
                        heapq.heappush(free, (listed, offer))
        while free and (plain or (held and free[0][0] < -held[0][0])):
            price, offer = heapq.heappop(free)
            if plain:
                plain -= 1
            else:
                given_up, left = heapq.heappop(held)
                rate += given_up
                taken.discard(left)
                listed = float(offers[step % offers.shape[0], left])
                if listed < conventional:
                    heapq.heappush(free, (listed, left))
            rate += rent(price, offer)
        following = (step + 1) * step_s
        arrival = float(times[order[position]]) if position < count else math.inf
        until = min(following, arrival, last)
        on_market += rate * (until - now)
        beyond += plain * conventional * (until - now)
        now = until
    return on_market / 3600.0, beyond / 3600.0
