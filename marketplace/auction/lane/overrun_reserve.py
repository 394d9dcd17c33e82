"""Slots beside those that a warm start was sold, reserved in case it falls behind.

The owner pays for what was sold. What is reserved on top is the market's risk: it is paid for if it
is used, and ``release_unused`` gives it back as soon as a validation shows the run at its target.
"""

from __future__ import annotations

from collections.abc import Collection

from marketplace.auction.lane.lane import Lane
from marketplace.auction.lane.plan_changes import PlanDoesNotFit, PlannedJob, move_plans
from marketplace.auction.models import Bid
from marketplace.fleet.selectors import last_slot_until
from marketplace.jobs.models import Job
from scheduler.auction.joint.least_laxity import plan_by_laxity
from scheduler.auction.search.room import PromisedJob

_RESERVED = "Slots for all of its steps are reserved, in case the warm start falls behind."


def reserve_worst_cases(lane: Lane, *, bid_ids: Collection[str]) -> int:
    """Reserve, for warm starts just admitted, what they would take without one; for how many.

    Where that does not fit before the deadline, the job has what it was sold, and is planned again
    if it falls behind.
    """
    if not bid_ids:
        return 0
    jobs = Job.objects.filter(bid_id__in=bid_ids).select_related("zone", "dataset")
    bids = Bid.objects.in_bulk(bid_ids)
    reserved = 0
    for job in jobs.order_by("pk"):
        bid, start = bids[job.bid_id], job.start
        assert start is not None
        promise = PromisedJob(
            task_id=bid.pk,
            deadline_slot=last_slot_until(lane.zone, bid.deadline_at),
            compute_demand=start.cold_units,
            memory_demand=bid.memory_demand_gb,
            rates=dict(sorted(bid.rates.items())),
            verified_only=bid.verified_only,
        )
        engine, first = lane.book.engine, lane.first_free_slot
        plan = plan_by_laxity(engine, lost=[promise], movable=[], slot=first)
        if not plan.kept:
            continue
        try:
            planned = PlannedJob(job=job, bid=bid, promise=promise)
            move_plans(lane, plan, [planned], explain=lambda _: _RESERVED)
        except PlanDoesNotFit:
            continue
        reserved += 1
    return reserved
