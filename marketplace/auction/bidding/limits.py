"""What one organisation may have of a market at a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from marketplace.auction.bidding.holding_limit import check_holding_limit
from marketplace.auction.bidding.new_accounts import refuse_crowds
from marketplace.auction.bidding.resuming import refuse_resumed
from marketplace.auction.models import Bid
from marketplace.common.errors import UserError


def refuse_by_limits(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse those bids that a limit keeps from being placed; the first reason counts.

    Call while holding the organisations' wallets, so that no two are placed at once.
    """
    limits = (refuse_resumed, refuse_crowds, check_holding_limit)
    refused: dict[int, UserError] = {}
    for refuse in limits:
        refused = refuse(drafts, now=now) | refused
    return refused
