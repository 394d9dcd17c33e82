"""What a seat does not pay: owners' money that went back for jobs that its nodes held up there.

A seat pays its providers for cells, whatever its job does. Without a forfeit a node could be late
with a friend's job, and the friend would have it for nothing while the seat is paid in full.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

from marketplace.auction.endings import judge_ending
from marketplace.auction.models import Bid
from marketplace.auction.pay_rule import Ending
from marketplace.express.models import ExpressRequest, Seat
from marketplace.fleet.slots import slot_ends_at, slot_starts_at
from marketplace.jobs.models import Job


def find_forfeits(seat: Seat) -> dict[str, int] | None:
    """By organisation, what owners got back for jobs that it made late or failed on a seat.

    Each job counts on the stretch of its seat in which its deadline lies. ``None``: one of them is
    not settled yet.
    """
    zone = seat.lane.zone
    begins_at = slot_starts_at(zone, seat.first_slot)
    requests = ExpressRequest.objects.filter(
        zone=zone,
        seat_bid_id=seat.root,
        created_at__gt=begins_at - timedelta(seconds=zone.slot_s * zone.horizon_slots),
    )
    jobs = Job.objects.filter(
        bid_id__in=requests.values("bid_id"),
        deadline_at__gte=begins_at,
        deadline_at__lt=slot_ends_at(zone, seat.last_slot),
    )
    forfeits: defaultdict[str, int] = defaultdict(int)
    for job in jobs.select_related("zone"):
        if job.settled_at is None:
            return None
        case = judge_ending(job)
        if case.at_fault and case.ending in (Ending.LATE, Ending.FAILED_BY_HOUSE):
            bid = Bid.objects.get(pk=job.bid_id)
            returned = bid.credit_micros
            if case.ending is Ending.FAILED_BY_HOUSE:
                returned = bid.refund_micros
            forfeits[case.at_fault[-1]] += returned
    return dict(forfeits)
