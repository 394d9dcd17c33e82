"""Which share of a job's price stays paid: what the log says as its cells go back on sale.

What others had given back, and the job bought, was sold again by that share (``returned_cells``).
Nothing here writes.
"""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction

from marketplace.auction.endings import EndedJob, describe_sale, find_prices
from marketplace.auction.give_backs import UndoneWork
from marketplace.auction.models import Bid
from marketplace.auction.pay_rule import Ending, SoldJob
from marketplace.jobs.models import Job


def find_paid_share(
    bid: Bid, sold: SoldJob, case: EndedJob | None = None, undone: UndoneWork | None = None
) -> Fraction:
    """Find which share of a job's price, as it was sold, stays paid, without a vendor's.

    Parameters
    ----------
    case
        How the job ended; ``None``: it goes on. A credit for a late end is paid beside the price.
    undone
        What is left of the work of one that its owner gives back. The rent of cells that have begun
        stays paid.
    """
    whole, price = find_prices(bid, sold)
    share = Fraction(price, whole) if whole else Fraction(1)
    if case is None:
        return share
    if is_refunded(bid, case):
        return Fraction(0)
    if undone is None:
        return share * case.work.share
    returned = undone.coming + undone.passed + undone.taken
    return max(Fraction(0), share - returned / Fraction(bid.compute_demand))


def find_share_so_far(job: Job, *, now: datetime) -> float:
    """Find it of a job that goes on and needs some of its cells no longer."""
    bid = Bid.objects.get(pk=job.bid_id)
    return float(find_paid_share(bid, describe_sale(bid, job, None, now=now)))


def is_refunded(bid: Bid, case: EndedJob) -> bool:
    """Whether the market failed the job, so that nothing of its price stays paid."""
    return case.ending is Ending.FAILED_BY_HOUSE and bid.organisation_id not in case.at_fault
