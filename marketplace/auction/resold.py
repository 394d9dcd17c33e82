"""The rent of cells that an owner gave back shortly before they began, once the log has spoken.

A job is settled as it ends: nobody's pay waits for this. What was kept of it lies in the account
``congestion``. From there the owner gets the rent of what was sold again, and the provider of what
was not gets what it asked for its idle room. The rest stays.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import (
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce

from marketplace.accounts.selectors import is_run_by_operator, share_members
from marketplace.auction import locks
from marketplace.auction.book.engine_cache import LATE_SLOTS
from marketplace.auction.models import Bid, Reservation, ResultDispute
from marketplace.auction.retries import put_off
from marketplace.common.money import format_usd, split_micros
from marketplace.jobs.locks import lock_job
from marketplace.jobs.models import EventKind, Job
from marketplace.jobs.services import add_job_event
from marketplace.payments.idle_pay import pay_for_idle_cells
from marketplace.payments.locks import lock_shares
from marketplace.payments.models import AccountKind
from marketplace.payments.selectors import find_house_fees, measure_refundable
from marketplace.payments.services import refund_charge
from marketplace.vendors.selectors import find_preparation

#: Slots after a job's end in which its zone has to say what was sold again of its cells.
WAIT_SLOTS = 2 * LATE_SLOTS
#: Jobs of one run; the next takes the rest.
BATCH_LIMIT = 200
REFUND_REASON = "Rent of cells that were sold again"


def settle_rents(*, now: datetime) -> int:
    """Pay what waited for cells of settled jobs to be sold again; of how many jobs.

    One that cannot be paid is tried again with backoff, while the others go on.
    """
    settled = 0
    for bid in _list_due(now=now)[:BATCH_LIMIT]:
        job = Job.objects.get(bid_id=bid.pk)
        try:
            settled += settle_rent(job=job, now=now)
        except Exception as error:
            put_off(job, error, now=now)
    return settled


def _list_due(*, now: datetime) -> QuerySet[Bid]:
    """Bids of whose cells the log has said all, or whose zone had the time to.

    A dispute about a result is decided first: it may give all of the price back.
    """
    said = (
        Reservation.objects.filter(bid=OuterRef("pk"))
        .values("bid")
        .annotate(total=Sum("waited_micros"))
        .values("total")
    )
    finished_at = Job.objects.filter(bid_id=OuterRef("pk")).values("finished_at")
    had_s = ExpressionWrapper(
        Value(timedelta(seconds=WAIT_SLOTS)) * F("zone__slot_s"), output_field=DurationField()
    )
    disputed = ResultDispute.objects.filter(bid=OuterRef("pk"), decided_at=None)
    due = Bid.objects.filter(~Exists(disputed), rent_due_micros__isnull=False)
    due = due.exclude(retry_at__gt=now)
    due = due.annotate(
        said_micros=Coalesce(Subquery(said), 0), since=Subquery(finished_at), had_s=had_s
    )
    had_time = Q(since__lte=Value(now) - F("had_s"))
    return due.filter(Q(said_micros__gte=F("waits_micros")) | had_time).order_by("pk")


def settle_rent(*, job: Job, now: datetime) -> bool:
    """Pay what waited of one job, once; false where it was.

    All goes back of cells of which the log says nothing in time: their owner held nothing up.
    """
    with transaction.atomic():
        job = lock_job(job.pk)
        bid = locks.lock_bid(bid_id=job.bid_id)
        if bid.rent_due_micros is None:
            return False
        cells = list(
            Reservation.objects.filter(bid=bid, waited_micros__isnull=False).select_related(
                "node__provider"
            )
        )
        # A dispute may have given all of it back.
        left = measure_refundable(hold_reference=bid.hold_reference)
        back = min(_find_rent_back(bid, job, cells), left)
        kept = find_house_fees(hold_reference=bid.hold_reference).get(AccountKind.CONGESTION, 0)
        idle = _find_idle_pay(bid, cells, most_micros=min(kept, left) - back)
        lock_shares(
            hold_reference=bid.hold_reference, buyer_id=bid.organisation_id, earner_ids=idle
        )
        if back:
            refund_charge(
                hold_reference=bid.hold_reference,
                amount_micros=back,
                reason=REFUND_REASON,
                source=AccountKind.CONGESTION,
                now=now,
            )
            add_job_event(
                job=job,
                kind=EventKind.REFUNDED,
                message=f"{REFUND_REASON}: {format_usd(back)} went back to your wallet.",
                data={"amount_micros": back},
                now=now,
            )
        pay_for_idle_cells(hold_reference=bid.hold_reference, amounts_micros=idle, now=now)
        bid.rent_due_micros = None
        bid.failure, bid.failures, bid.retry_at = "", 0, None
        bid.save(update_fields=["rent_due_micros", "failure", "failures", "retry_at"])
    return True


def _find_rent_back(bid: Bid, job: Job, cells: list[Reservation]) -> int:
    """What goes back: all of cells of which the log says nothing, and what was sold of the others.

    Cells that the data did not need, and those given back as the job ended, count apart: of each no
    more goes back than is due for it.
    """
    preparation = find_preparation(job)
    of_data = 0 if preparation is None else preparation.waits_micros
    concluded_at = preparation.concluded_at if preparation is not None and of_data else None
    early, late = 0, 0
    for cell in cells:
        kept = (cell.waited_micros or 0) - (cell.resold_micros or 0)
        assert cell.released_at is not None
        if concluded_at is not None and cell.released_at <= concluded_at:
            early += kept
        else:
            late += kept
    due = (bid.rent_due_micros or 0) - of_data
    of_rest = bid.waits_micros - of_data
    # One given back twice counts as given back late, with both rents.
    return max(0, of_data - early + min(due, of_rest - late))


def _find_idle_pay(bid: Bid, cells: list[Reservation], *, most_micros: int) -> dict[str, int]:
    """By provider's organisation, what it gets for room that stayed idle; no more than was kept.

    The owner's own get nothing: its late end would cost it less. Nor do the house's: what stays
    with it is no profit.
    """
    asked: Counter[str] = Counter()
    for cell in cells:
        asked[cell.node.provider.organisation_id] += cell.idle_micros or 0
    for pk in list(asked):
        if share_members(bid.organisation_id, pk) or is_run_by_operator(organisation_id=pk):
            del asked[pk]
    most = max(0, min(most_micros, asked.total()))
    parts = split_micros(most, list(asked.values())) if most else []
    return {pk: part for pk, part in zip(asked, parts, strict=False) if part}
