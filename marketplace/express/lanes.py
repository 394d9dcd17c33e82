"""Opening, changing and closing the express lane of a zone."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from django.db.models import Q

from marketplace.accounts.models import Organisation
from marketplace.common.errors import UserError
from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job

#: The most seats a lane may hold.
SEATS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTerms:
    """What an operator chooses for a lane; fields as ``ExpressLane`` has them."""

    is_open: bool
    least_seats: int
    most_seats: int
    seat_limit_micros: int
    budget_micros_per_h: int
    slo_max_s: float
    #: Seats on nodes of verified providers, so that jobs that ask for those may sit on them.
    verified_only: bool = False


def set_lane(*, zone: Zone, organisation: Organisation, terms: LaneTerms) -> ExpressLane:
    """Open a zone's lane with these terms, or change them.

    ``organisation`` pays for the seats: it needs money in its wallet.

    Raises
    ------
    UserError
        ``invalid_lane``: a bound that no lane can have, or jobs that ask for verified providers are
        in a lane that is to buy other seats.
    """
    if not 0 <= terms.least_seats <= terms.most_seats <= SEATS_MAX:
        raise _refuse(f"Seats are 0 to {SEATS_MAX}, the least no more than the most.", "seats")
    if terms.seat_limit_micros <= 0 or terms.budget_micros_per_h <= 0:
        raise _refuse("Limit and budget must be above zero.", "budget")
    if not 1.0 <= terms.slo_max_s <= zone.slot_s * zone.horizon_slots:
        raise _refuse("The longest SLO is 1 s to the zone's horizon.", "slo_max_s")
    if not terms.verified_only and _has_verified_jobs(zone):
        raise _refuse(
            "Jobs that ask for verified providers are in the lane. Try again when they have ended.",
            "verified_only",
        )
    lane, _ = ExpressLane.objects.update_or_create(
        zone=zone, defaults={"organisation": organisation, **asdict(terms)}
    )
    return lane


def _has_verified_jobs(zone: Zone) -> bool:
    asked = ExpressRequest.objects.filter(zone=zone, verified_only=True)
    ended = Job.objects.exclude(status__in=Job.ACTIVE).values("bid_id")
    waiting = Q(status=RequestStatus.PENDING)
    return (
        asked.filter(waiting | Q(status=RequestStatus.ADMITTED))
        .exclude(status=RequestStatus.ADMITTED, bid_id__in=ended)
        .exists()
    )


def _refuse(sentence: str, param: str) -> UserError:
    return UserError("invalid_lane", sentence, param=param)
