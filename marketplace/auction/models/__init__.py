"""Bids, the decision log of each zone, and rows derived from the log."""

from marketplace.auction.models.alerts import Alert
from marketplace.auction.models.bids import (
    FIRST_REVISION,
    WAITS_SINCE,
    Bid,
    BidStatus,
    Bundle,
    NextArrival,
    hold_reference,
)
from marketplace.auction.models.disputes import ResultDispute
from marketplace.auction.models.log import (
    LogCheck,
    LogEntry,
    LogSegment,
    MarketHead,
    Snapshot,
)
from marketplace.auction.models.offers import PriceOffer
from marketplace.auction.models.plans import Reservation, WorkShare
from marketplace.auction.models.pricing import Pricing, SolveStatus
from marketplace.auction.models.witnesses import (
    MarketKey,
    PublishedHead,
    ReleaseSignature,
    WitnessCursor,
)

__all__ = [
    "FIRST_REVISION",
    "WAITS_SINCE",
    "Alert",
    "Bid",
    "BidStatus",
    "Bundle",
    "LogCheck",
    "LogEntry",
    "LogSegment",
    "MarketHead",
    "MarketKey",
    "NextArrival",
    "PriceOffer",
    "Pricing",
    "PublishedHead",
    "ReleaseSignature",
    "Reservation",
    "ResultDispute",
    "Snapshot",
    "SolveStatus",
    "WitnessCursor",
    "WorkShare",
    "hold_reference",
]
