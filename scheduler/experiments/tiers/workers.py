"""Renting, billing and releasing serverful workers, inside the compiled loop."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from scheduler.experiments.tiers.compiled import compiled
from scheduler.experiments.tiers.state import TierEvent, Worker
from scheduler.tiers import holding

if TYPE_CHECKING:
    from scheduler.experiments.tiers.state import RunState

#: (time, sequence number, event, job or worker, version)
Calendar = list[tuple[float, int, int, int, int]]

WORKER_READY = int(TierEvent.WORKER_READY)
WORKER_FAILS = int(TierEvent.WORKER_FAILS)
EMPTY, BOOTING, IDLE = int(Worker.EMPTY), int(Worker.BOOTING), int(Worker.IDLE)
HELD, BUSY = int(Worker.HELD), int(Worker.BUSY)

update_mean = compiled(holding.update_mean)
is_worth_holding = compiled(holding.is_worth_holding)

#: Marks an offer while the price of a gang is added up.
PRICING = 2
#: Which of a job's workers :func:`free_workers_of` takes.
AT_WORK, PROMISED, ALL = 0, 1, 2


@compiled
def post(
    world: RunState, calendar: Calendar, at: float, event: int, subject: int, version: int
) -> None:
    """Adds an event; events of one second keep the order they were posted in."""
    t = world.tally[0]
    t.seq += 1
    heapq.heappush(calendar, (at, t.seq, event, subject, version))


@compiled
def offer_price(world: RunState, now: float, m: int) -> float:
    """The asking price of an offer now; infinite while it is gone."""
    offers = world.supply.offers
    return offers[int(now / world.supply.step_s) % offers.shape[0], m]


@compiled
def next_offer(world: RunState, now: float, skip: int) -> int:
    """The cheapest free offer below the conventional price, or -1 for that cloud.

    ``skip`` leaves that many of the cheapest free offers to longer jobs, as long as
    a more expensive one is available.
    """
    free = world.taken
    best = -1
    floor_price, floor_offer = -math.inf, -1
    for _ in range(skip + 1):
        found, found_price = -1, world.choice[0].conventional_price
        for m in range(free.shape[0]):
            if free[m] == 0:
                price = offer_price(world, now, m)
                after = price > floor_price or (price == floor_price and m > floor_offer)
                if price < found_price and after:
                    found, found_price = m, price
        if found < 0:
            break
        best = found
        floor_price, floor_offer = found_price, found
    return best


@compiled
def price_of(world: RunState, now: float, offer: int) -> float:
    """Dollars per hour of what :func:`next_offer` named."""
    if offer < 0:
        return world.choice[0].conventional_price
    return offer_price(world, now, offer)


@compiled
def expected_boot_s(world: RunState, offer: int) -> float:
    """Mean start-up time of what :func:`next_offer` named."""
    if offer < 0:
        return world.choice[0].conventional_boot_s
    return world.choice[0].marketplace_boot_s


@compiled
def gang_price(world: RunState, now: float, gpus: int, skip: int) -> float:
    """Mean price per GPU of the workers a gang would get now, idle ones first."""
    t, pool = world.tally[0], world.pool
    total, found = 0.0, 0
    if gpus == 1 and t.idle > 0:
        return float(pool[cheapest_idle(world)].price)
    if t.idle > 0:
        for i in range(t.live):
            w = pool[i].live
            if pool[w].state == IDLE and found < gpus:
                total += pool[w].price
                found += 1
    for _ in range(gpus - found):
        offer = next_offer(world, now, skip)
        total += price_of(world, now, offer)
        found += 1
        if offer < 0:
            break
        world.taken[offer] = PRICING
    for m in range(world.taken.shape[0]):
        if world.taken[m] == PRICING:
            world.taken[m] = 0
    total += (gpus - found) * world.choice[0].conventional_price
    return total / gpus


@compiled
def paid_price(world: RunState) -> float:
    """Mean price of the live workers; the conventional price without any.

    Added up again only after a rent began or ended: a full tier asks often and
    changes seldom.
    """
    t, pool = world.tally[0], world.pool
    if t.paid_known == 0:
        total = 0.0
        for i in range(t.live):
            total += pool[pool[i].live].price
        t.paid_price = total / t.live if t.live > 0 else world.choice[0].conventional_price
        t.paid_known = 1
    return float(t.paid_price)


@compiled
def launch(world: RunState, calendar: Calendar, now: float, job: int, skip: int) -> int:
    """Rents one worker, promised to ``job`` unless that is -1; -1 if the cap is reached."""
    t, pool, supply = world.tally[0], world.pool, world.supply
    if t.empty == 0:
        return -1
    t.empty -= 1
    w = pool[t.empty].empty
    offer = next_offer(world, now, skip)
    pool[w].price = price_of(world, now, offer)
    pool[w].offer = offer
    if offer >= 0:
        world.taken[offer] = 1
        boots = supply.marketplace_boots_s
        turn = t.marketplace_launches
        t.marketplace_launches += 1
    else:
        boots, turn = supply.conventional_boots_s, t.conventional_launches
        t.conventional_launches += 1
    pool[w].state = BOOTING
    pool[w].version += 1
    pool[w].job = job
    pool[w].requested_s = now
    pool[w].place = t.live
    pool[t.live].live = w
    t.live += 1
    t.paid_known = 0
    t.peak = max(t.peak, t.live)
    if job >= 0:
        world.track[job].promised += 1
    else:
        t.unpromised_boots += 1
    boot = float(boots[turn % boots.shape[0]])
    post(world, calendar, now + boot, WORKER_READY, w, pool[w].version)
    return w


@compiled
def end_rent(world: RunState, w: int, now: float) -> None:
    """Bills a worker from request to now and empties its slot; it serves no job."""
    t, pool = world.tally[0], world.pool
    cost = (now - pool[w].requested_s) / 3600.0 * pool[w].price
    if pool[w].offer >= 0:
        t.marketplace_usd += cost
        world.taken[pool[w].offer] = 0
    else:
        t.conventional_usd += cost
    if pool[w].state == IDLE:
        t.idle -= 1
    elif pool[w].state == BOOTING and pool[w].job < 0:
        t.unpromised_boots -= 1
    pool[w].state = EMPTY
    pool[w].version += 1
    pool[w].job = -1
    last = pool[t.live - 1].live
    pool[pool[w].place].live = last
    pool[last].place = pool[w].place
    pool[w].place = -1
    t.live -= 1
    t.paid_known = 0
    pool[t.empty].empty = w
    t.empty += 1


@compiled
def make_idle(world: RunState, w: int) -> None:
    """A ready worker without a job."""
    world.pool[w].state = IDLE
    world.pool[w].job = -1
    world.tally[0].idle += 1


@compiled
def cheapest_idle(world: RunState) -> int:
    """The idle worker with the lowest rent; one must be idle."""
    t, pool = world.tally[0], world.pool
    best = -1
    for i in range(t.live):
        w = pool[i].live
        if pool[w].state == IDLE and (best < 0 or pool[w].price < pool[best].price):
            best = w
    return best


@compiled
def dearest_idle(world: RunState) -> int:
    """The idle worker with the highest rent; one must be idle."""
    t, pool = world.tally[0], world.pool
    best = -1
    for i in range(t.live):
        w = pool[i].live
        if pool[w].state == IDLE and (best < 0 or pool[w].price > pool[best].price):
            best = w
    return best


@compiled
def take_idle(world: RunState, job: int, state: int) -> int:
    """Gives the cheapest idle worker to a job; one must be idle."""
    w = cheapest_idle(world)
    world.tally[0].idle -= 1
    world.pool[w].state = state
    world.pool[w].job = job
    return w


@compiled
def take_dearest_idle(world: RunState, job: int, state: int) -> int:
    """Gives the dearest idle worker to a job; one must be idle."""
    w = dearest_idle(world)
    world.tally[0].idle -= 1
    world.pool[w].state = state
    world.pool[w].job = job
    return w


@compiled
def note_take(world: RunState, now: float, use_s: float, gpus: int) -> None:
    """Counts a job that takes workers, for :func:`release_unworthy`."""
    t = world.tally[0]
    t.gap_s = update_mean(t.gap_s, (now - t.taken_s) / gpus, t.takes)
    t.use_s = update_mean(t.use_s, use_s, t.takes)
    t.taken_s = now
    t.takes += 1


@compiled
def release_unworthy(world: RunState, now: float, most: int) -> int:
    """Ends up to ``most`` idle workers, dearest first, until one is worth its rent."""
    t, pool, choice = world.tally[0], world.pool, world.choice[0]
    ended = 0
    while ended < most and t.idle > 0:
        w = dearest_idle(world)
        offer = next_offer(world, now, 0)
        again = price_of(world, now, offer)
        if pool[w].offer >= 0:
            again = min(again, offer_price(world, now, pool[w].offer))
        gap_s = max(t.gap_s, now - t.taken_s)
        if t.takes > 1 and is_worth_holding(
            pool[w].price,
            again,
            expected_boot_s(world, offer),
            choice.delay_price,
            t.use_s,
            gap_s * t.idle,
        ):
            break
        end_rent(world, w, now)
        ended += 1
    return ended


@compiled
def free_workers_of(world: RunState, job: int, which: int) -> None:
    """Takes workers from a job: ready ones turn idle, booting ones unpromised.

    ``which`` is ``AT_WORK`` (those the job runs on), ``PROMISED`` (those waiting for
    it) or ``ALL``.
    """
    t, pool, track = world.tally[0], world.pool, world.track
    for i in range(t.live):
        w = pool[i].live
        at_work = pool[w].state == BUSY
        if pool[w].job == job and (which == ALL or at_work == (which == AT_WORK)):
            if pool[w].state == BOOTING:
                pool[w].job = -1
                t.unpromised_boots += 1
            else:
                make_idle(world, w)
    if which != AT_WORK:
        track[job].promised = 0
        track[job].ready = 0


@compiled
def release_idle(world: RunState, now: float, most: int) -> int:
    """Ends up to ``most`` idle workers, dearest first; answers how many."""
    t = world.tally[0]
    ended = 0
    while ended < most and t.idle > 0:
        end_rent(world, dearest_idle(world), now)
        ended += 1
    return ended


@compiled
def cancel_boots(world: RunState, now: float) -> None:
    """Ends every booting worker that no job is promised."""
    t, pool = world.tally[0], world.pool
    i = 0
    while i < t.live:
        w = pool[i].live
        if pool[w].state == BOOTING and pool[w].job < 0:
            end_rent(world, w, now)
        else:
            i += 1


@compiled
def start_life(world: RunState, calendar: Calendar, now: float, w: int) -> None:
    """Draws when a worker that just became ready will fail, if ever."""
    t, supply = world.tally[0], world.supply
    life = float(supply.lives_s[t.ready_count % supply.lives_s.shape[0]])
    t.ready_count += 1
    if life < math.inf:
        post(world, calendar, now + life, WORKER_FAILS, w, world.pool[w].version)
