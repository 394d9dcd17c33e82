"""The floor: how many seats the lane holds ahead of demand, and what they cost.

Every tick the newsvendor rule is asked how many seats recent demand repays, within the operator's
bounds and budget; what is missing of them is bid for, slot after slot, ahead of the longest SLO on
sale. A seat above the floor without work goes back on sale. When a seat's slots are over its
providers are paid for the cells as they were sold, used or not, less what owners got back for jobs
that they held up there; what cells given back cost returns to the lane, and what the bid paid above
that is the market's.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, Sum

from marketplace.auction.book.reservations import release_reservations
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.lane import Lane
from marketplace.auction.models import Bid, BidStatus, Reservation
from marketplace.auction.pay_rule import compute_asks
from marketplace.common.queue import enqueue
from marketplace.express.fair_share import find_share
from marketplace.express.gangs import count_wanted_seats
from marketplace.express.locks import lock_seat
from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus, Seat
from marketplace.express.provider_clawback import find_forfeits
from marketplace.express.seat_queue import bring_forward
from marketplace.express.seats import HeldSeat, buy_seats, load_seats
from marketplace.fleet.models import NodeStatus
from marketplace.fleet.selectors import slot_at
from marketplace.jobs.models import Job
from marketplace.payments.locks import lock_shares
from marketplace.payments.services import (
    CostSplit,
    Share,
    distribute_charge,
    refund_charge,
)
from scheduler.auction.log import events
from scheduler.prompts.admission import LaneAnswer
from scheduler.prompts.floor import compute_newsvendor_floor
from scheduler.prompts.reclaim import count_reclaimable
from scheduler.types import Cell

log = logging.getLogger(__name__)

#: The past that demand is looked at over, and the distance of its moments.
HISTORY_S, STEP_S = 600.0, 10.0
#: A seat that is missing costs this many times what an idle one does: the refund of a late job
#: and the customer who was refused.
SHORTAGE_TO_IDLE = 4.0
#: Slots that a seat is bid for beyond the longest SLO on sale.
SPARE_SLOTS = 6
#: Seats that one run pays for at most.
SETTLED_MOST = 50
#: Seconds without work after which a seat above the floor goes back on sale.
RECLAIM_S = 10.0


def run_ticks(*, now: datetime) -> int:
    """Keep every open lane's floor; how many seats were bid for."""
    bought = 0
    for lane in ExpressLane.objects.select_related("zone").filter(is_open=True).order_by("pk"):
        try:
            settle_seats(lane, now=now)
            bring_forward(lane, now=now)
            bought += keep_floor(lane, now=now)
            reclaim_seats(lane, now=now)
            enqueue("express.answer_requests", zone_id=lane.zone_id)
        except Exception:
            # One lane must not keep the others waiting.
            log.exception("the express lane of %s could not be kept; it is tried again", lane.pk)
    return bought


def keep_floor(lane: ExpressLane, *, now: datetime) -> int:
    """Post the lane's rate and bid for what its floor lacks; how many seats were bid for."""
    lane.rate_micros = find_rate_micros(lane)
    lane.floor_seats = find_floor(lane, now=now)
    lane.ticked_at = now
    lane.save(update_fields=["rate_micros", "floor_seats", "ticked_at"])
    zone = lane.zone
    slot = slot_at(zone, now)
    horizon_last = slot + zone.horizon_slots - 1
    wanted = min(slot + math.ceil(lane.slo_max_s / zone.slot_s) + 1, horizon_last)
    tried = _list_tried(lane, now=now)
    bought: list[str] = []
    # Those that reach furthest are the floor; others end with their slots.
    chains = sorted(
        (seat for seat in load_seats(lane, now=now) if not seat.is_burst),
        key=lambda seat: (-seat.last_slot, seat.root),
    )[: lane.floor_seats]
    for seat in chains:
        following = seat.last_slot + 1
        if seat.last_slot < wanted and (seat.root, following) not in tried:
            last = min(max(wanted, following) + SPARE_SLOTS, horizon_last)
            bought += buy_seats(
                lane, first_slot=following, last_slot=last, count=1, root=seat.root, now=now
            )
    new = sum(root == bid_id for bid_id, root, _ in _list_new(lane, now=now))
    lacking = lane.floor_seats - len(chains) - new
    if lacking > 0:
        last = min(wanted + SPARE_SLOTS, horizon_last)
        bought += buy_seats(lane, first_slot=slot + 2, last_slot=last, count=lacking, now=now)
    return len(bought)


def _list_new(lane: ExpressLane, *, now: datetime) -> list[tuple[str, str, int]]:
    """Bid, chain and first slot of what was bid for within the last slot and has no cell yet.

    A bid that was refused is tried again a slot later, not at once.
    """
    since = now - timedelta(seconds=lane.zone.slot_s)
    seats = Seat.objects.filter(lane=lane, is_burst=False, created_at__gt=since)
    admitted = Bid.objects.filter(pk__in=seats.values("pk"), status=BidStatus.ADMITTED)
    without = seats.exclude(pk__in=admitted.values("pk"))
    return list(without.values_list("pk", "root", "first_slot"))


def _list_tried(lane: ExpressLane, *, now: datetime) -> set[tuple[str, int]]:
    """Chains and the slots at which going on was bid for within the last slot."""
    return {(root, first) for _, root, first in _list_new(lane, now=now)}


def find_floor(lane: ExpressLane, *, now: datetime) -> int:
    """The seats that recent demand repays, within bounds and budget."""
    found = compute_newsvendor_floor(
        list_demand(lane, now=now),
        shortage=SHORTAGE_TO_IDLE,
        idle=1.0,
        least=lane.least_seats,
        most=lane.most_seats,
    )
    per_hour = compute_hourly_cost(lane)
    affordable = int(lane.budget_micros_per_h // per_hour) if per_hour else found
    return min(found, affordable)


def compute_hourly_cost(lane: ExpressLane) -> float:
    """What a seat costs in an hour, micro-dollars; 0 before any was bought."""
    return _seat_cost_micros(lane) * 3600.0 / lane.zone.slot_s


def list_demand(lane: ExpressLane, *, now: datetime) -> list[int]:
    """Seats that requests held or waited for, at evenly spaced moments of the recent past.

    An organisation counts up to the share of the seats that it may have. A job that takes longer
    than its SLO even on an idle seat does not count: no further seat would have served them.
    """
    begin = now - timedelta(seconds=HISTORY_S)
    requests = list(
        ExpressRequest.objects.filter(zone=lane.zone_id, created_at__gte=begin)
        .exclude(status=RequestStatus.REFUSED, answer__answer=str(LaneAnswer.TOO_SHORT))
        .only(*_OF_REQUESTS)
    )
    ended = dict(
        Job.objects.filter(bid_id__in=[one.bid_id for one in requests if one.bid_id]).values_list(
            "bid_id", "finished_at"
        )
    )
    spans: defaultdict[str, list[tuple[datetime, datetime, int]]] = defaultdict(list)
    for request in requests:
        if request.status == RequestStatus.ADMITTED:
            until = ended.get(request.bid_id) or now
        else:
            # One that was refused would have sat there for its work.
            until = request.created_at + timedelta(seconds=request.work_s)
        wanted = count_wanted_seats(request)
        spans[request.organisation_id].append((request.created_at, until, wanted))
    share = find_share(lane.most_seats)
    moments = [begin + timedelta(seconds=STEP_S * i) for i in range(int(HISTORY_S / STEP_S) + 1)]
    return [
        sum(
            min(share, sum(wanted for start, end, wanted in own if start <= at < end))
            for own in spans.values()
        )
        for at in moments
    ]


#: What is read of requests for demand; they have much more.
_OF_REQUESTS = (
    *("organisation_id", "status", "bid_id", "created_at", "work_s"),
    *("slo_s", "price", "answer"),
)


def find_rate_micros(lane: ExpressLane) -> int | None:
    """What a seat's second is sold for: what the last seats cost, and the markup."""
    cost = _seat_cost_micros(lane)
    if not cost:
        return lane.rate_micros
    return math.ceil(cost / lane.zone.slot_s * (1 + lane.markup_percent / 100))


def _seat_cost_micros(lane: ExpressLane) -> float:
    """Mean price of a slot of the last seats bought; 0 before any."""
    latest = Seat.objects.filter(lane=lane).order_by("-created_at")[:20]
    bids = Bid.objects.filter(
        pk__in=[seat.pk for seat in latest], status=BidStatus.ADMITTED
    ).values_list("pk", "payment_micros")
    paid = dict(bids)
    slots = sum(seat.last_slot - seat.first_slot + 1 for seat in latest if seat.pk in paid)
    return sum(paid.values()) / slots if slots else 0.0


def reclaim_seats(lane: ExpressLane, *, now: datetime) -> int:
    """Put the coming cells of seats above the floor that have been idle back on sale; how many."""
    if not _find_reclaimable(lane, now=now):
        return 0
    with enter_lane(zone=lane.zone, now=now) as book:
        # As they are now that nothing else can change them.
        idle = _find_reclaimable(lane, now=now)
        for seat in idle:
            _give_back(book, seat)
    return len(idle)


def _find_reclaimable(lane: ExpressLane, *, now: datetime) -> list[HeldSeat]:
    """Idle seats beyond the floor: those of a burst first, then those idle longest."""
    slot = slot_at(lane.zone, now)
    seats = [seat for seat in load_seats(lane, now=now) if seat.last_slot > slot]
    idle = [seat for seat in seats if seat.idle_since is not None]
    idle.sort(key=lambda seat: (not seat.is_burst, seat.idle_since, seat.root))
    count = count_reclaimable(
        [(seat.idle_since - now).total_seconds() for seat in idle if seat.idle_since],
        warm=len(seats),
        floor=lane.floor_seats,
        claimed=0,
        now_s=0.0,
        reclaim_s=RECLAIM_S,
    )
    long_ago = now - timedelta(seconds=RECLAIM_S)
    return [seat for seat in idle if seat.idle_since and seat.idle_since <= long_ago][:count]


def _give_back(book: Lane, seat: HeldSeat) -> None:
    """Release a seat's coming cells."""
    coming: defaultdict[str, list[Cell]] = defaultdict(list)
    for bid_id, cell in seat.cells:
        if cell.slot >= book.first_free_slot:
            coming[bid_id].append(cell)
    for bid_id, cells in coming.items():
        # Only their operational cost returns to the lane; the rent in their price stays paid.
        book.apply(events.CellsReleased(task_id=bid_id, cells=tuple(cells), paid_share=1.0))
        which = Q(slot__gte=book.first_free_slot)
        release_reservations(bid_id=bid_id, which=which, now=book.now)
        Seat.objects.filter(pk=bid_id).update(last_slot=cells[0].slot - 1)


def settle_seats(lane: ExpressLane, *, now: datetime) -> int:
    """Pay the providers of seats whose slots are over, once each; how many seats."""
    over = Seat.objects.filter(
        lane=lane, settled_at__isnull=True, last_slot__lt=slot_at(lane.zone, now)
    )
    settled = 0
    for seat in over.select_related("lane__zone").order_by("pk"):
        settled += settle_seat(seat, now=now)
        if settled == SETTLED_MOST:
            break
    return settled


def settle_seat(seat: Seat, *, now: datetime) -> bool:
    """Pay for the cells of one seat, once.

    False when it was done before, the bid is not decided yet, or a job there is not settled.
    """
    forfeits = find_forfeits(seat)
    if forfeits is None:
        return False
    with transaction.atomic():
        seat = lock_seat(seat.pk)
        bid = Bid.objects.get(pk=seat.pk)
        if seat.settled_at is not None or bid.status == BidStatus.PENDING:
            return False
        if bid.status == BidStatus.ADMITTED:
            _pay_providers(bid, forfeits, now=now)
        seat.settled_at = now
        seat.save(update_fields=["settled_at"])
    return True


def _pay_providers(bid: Bid, forfeits: Mapping[str, int], *, now: datetime) -> None:
    """Share the operational cost of a seat among the nodes whose cells it kept.

    What cells cost that were lost or given back returns to the lane; that of a suspended node, and
    what a provider forfeits, stays with the market.
    """
    assert bid.payment_micros is not None
    cells = Reservation.objects.filter(bid=bid)
    kept = cells.filter(released_at__isnull=True).exclude(node__status=NodeStatus.SUSPENDED)
    operational = float((bid.parts or {}).get("operational", 0.0))
    left = compute_asks(operational=operational, payment_micros=bid.payment_micros)
    shares: list[Share] = []
    for organisation_id, cost in (
        kept.values_list("node__provider__organisation_id")
        .annotate(cost=Sum("operational_cost_micros"))
        .order_by("node__provider__organisation_id")
    ):
        paid = min(cost, left)
        left -= paid
        withheld = min(paid, forfeits.get(organisation_id, 0))
        shares.append(Share(organisation_id, paid - withheld))
    given_back = cells.filter(released_at__isnull=False)
    unused = given_back.aggregate(cost=Sum("operational_cost_micros"))["cost"] or 0
    returned = min(unused, left)
    # All at once, before a refund locks the wallet alone.
    lock_shares(
        hold_reference=bid.hold_reference,
        buyer_id=bid.organisation_id,
        earner_ids=[share.organisation_id for share in shares],
    )
    if returned:
        refund_charge(
            hold_reference=bid.hold_reference,
            amount_micros=returned,
            reason="Cells of a seat given back",
            now=now,
        )
    split = CostSplit(
        asks_micros=sum(share.amount_micros for share in shares) + returned,
        asks_returned_micros=returned,
        shares=tuple(shares),
    )
    distribute_charge(hold_reference=bid.hold_reference, split=split, now=now)
