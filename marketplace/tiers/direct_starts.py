"""Jobs that begin on a worker of the market, without a stay on serverless before.

The auction has measured the work, so how long a job runs is known before its first step. A waiting
job that would repay a worker begins there at once if that is better than a start on serverless and
a move (``scheduler.tiers.demotion.decide_start``, as in the simulator). It is a booking without an
origin: the hand-off gives the job its cells (``handoff``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from marketplace.common.money import format_usd
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import slot_at, slot_starts_at
from marketplace.jobs.models import Job, JobStatus
from marketplace.jobs.work import compute_work_left_share, measure_job_work
from marketplace.tiers.bookings import WorkerChoice, book_worker, find_cheapest_worker
from marketplace.tiers.hazard_tables import HazardTables
from marketplace.tiers.models import Machine, MachineStatus, ZoneTiers
from marketplace.tiers.provisioning import MachineOffer
from marketplace.tiers.tier_state import TierState, filter_offers, get_loaded_node
from scheduler.tiers.allowance import compute_allowance
from scheduler.tiers.break_even import compute_move_cost
from scheduler.tiers.demotion import Budget, PossibleStart, decide_start


def has_not_begun(job: Job) -> bool:
    """Whether a job waits for its first step, with a plan."""
    return job.status == JobStatus.QUEUED and job.started_at is None and not job.needs_replan


def book_direct_starts(
    *,
    rented: TierState,
    waiting: Sequence[Job],
    offers: Sequence[MachineOffer],
    tables: HazardTables,
    now: datetime,
) -> int:
    """Book workers for waiting jobs that should begin on them; how many.

    Parameters
    ----------
    waiting
        Jobs whose first cell is further away than a move takes; those that must end first come
        first.
    """
    serverless = _find_serverless(rented, offers)
    # A worker boots for those already.
    listed = {one.node_id for one in rented.listed}
    slot = slot_at(rented.tiers.zone, now)
    made = 0
    for job in waiting if serverless is not None else ():
        if any(at > slot and where in listed for at, where in job.cells):
            continue
        worker = find_cheapest_worker(rented, offers) if has_not_begun(job) else None
        if worker is not None and serverless is not None:
            made += _try_book(rented, job, worker, serverless, tables, now)
    return made


def _find_serverless(rented: TierState, offers: Sequence[MachineOffer]) -> MachineOffer | None:
    """What a job would begin on otherwise: a serverless machine that is up, else an offer."""
    up = [one for one, _ in rented.online(serverless=True)]
    if up:
        return MachineOffer(up[0].offer, up[0].tier, up[0].price_micros_per_h, 0.0)
    found = filter_offers(offers, serverless=True) if rented.room(serverless=True) > 0 else []
    return found[0] if found else None


def _try_book(
    rented: TierState,
    job: Job,
    worker: WorkerChoice,
    serverless: MachineOffer,
    tables: HazardTables,
    now: datetime,
) -> bool:
    tiers = rented.tiers
    cells = [(at, where) for at, where in job.cells if at > slot_at(tiers.zone, now)]
    if not cells:
        return False
    wait_s = (slot_starts_at(tiers.zone, cells[0][0]) - now).total_seconds()
    left_s = _compute_run_s(tiers, job, worker.machine)
    if left_s is None or wait_s <= worker.boot_s:
        return False
    expected_s = tables.expected_left_s(done_s=0.0, left_s=left_s)
    if rented.price_micros_per_h(cells[0][1]) <= worker.price_micros_per_h:
        # From then on the reserved node serves it for no more.
        expected_s = min(expected_s, wait_s)
    paid, price = serverless.price_micros_per_h / 1e6, worker.price_micros_per_h / 1e6
    brought = compute_allowance(
        left_s,
        tiers.threshold_s,
        max(0.0, paid - price),
        compute_move_cost(
            tiers.checkpoint_s, tiers.restore_s, worker.boot_s, 0.0, paid, price, 0.0
        ),
    )
    decision = decide_start(
        PossibleStart(
            expected_s=expected_s,
            boot_s=worker.boot_s,
            serverless_boot_s=serverless.boot_s,
            serverless_price=paid,
            worker_price=price,
            checkpoint_s=tiers.checkpoint_s,
            restore_s=tiers.restore_s,
            delay_price=tiers.delay_usd_per_h,
            waits=False,
            gpus=1.0,
        ),
        Budget(planned=0.0, surplus=tiers.surplus + brought),
        tiers.rules.surplus_share,
    )
    if not decision.leaves:
        return False
    reason = (
        f"Booked for a job of about {left_s:.0f} s that has not begun, in the place of serverless "
        f"at {format_usd(serverless.price_micros_per_h)} an hour."
    )
    credit = decision.surplus - tiers.surplus
    book_worker(rented, job, None, worker, credit=credit, reason=reason, left_s=left_s, now=now)
    return True


def _compute_run_s(tiers: ZoneTiers, job: Job, machine: Machine | None) -> float | None:
    """How long the job runs on a worker; on one not yet rented as on the zone's fastest type."""
    work = measure_job_work(job)
    node: Node | None = None
    if machine is not None and machine.status == MachineStatus.RUNNING:
        node = get_loaded_node(machine)
    rate = max(work.rates.values(), default=0.0)
    if node is not None:
        rate = work.rates.get(node.gpu_type_id, 0.0)
    if rate <= 0.0:
        return None
    # A resumed job has less to do than all of its steps.
    return work.compute_demand * compute_work_left_share(job) / rate * tiers.zone.slot_s
