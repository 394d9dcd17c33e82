"""A bid, and what the auction answered to it."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from marketplace.auction.bidding.answer import answer_price, describe_lapse
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.bidding.refusals import describe_bid_refusal
from marketplace.auction.bidding.wait import wait_for_bid
from marketplace.auction.book.proofs import build_bid_proof
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.selectors import find_job_ids, get_bid
from marketplace.common import clock
from marketplace.common.errors import Conflict, UserError
from marketplace.fleet.selectors import find_largest_room_gb
from marketplace.web.presenters.plans import build_bid_ribbon
from marketplace.web.presenters.receipt import find_kept, list_bid_lines
from marketplace.web.views.bid_form import format_local
from marketplace.web.views.requests import PageRequest, page


@page
@require_GET
def show_bid(request: PageRequest, bid_id: str) -> HttpResponse:
    bid = get_bid(request.organisation, bid_id)
    if bid.is_joint and bid.status != BidStatus.ADMITTED:
        # It has no answer of its own.
        return redirect("bundle_detail", bundle_id=bid.bundle_id)
    now = clock.now()
    context: dict[str, Any] = {
        "bid": bid,
        "now": now,
        "decide_s": _find_seconds(bid),
        "room_gb": find_largest_room_gb(bid.zone),
    }
    if bid.status == BidStatus.ADMITTED:
        assert bid.payment_micros is not None
        context |= {
            "job_id": find_job_ids([bid]).get(bid.pk),
            "lines": list_bid_lines(bid),
            "kept_micros": find_kept(bid),
            "ribbon": build_bid_ribbon(bid, now=now),
        }
    elif bid.asks_price and bid.price_offer.lapse:
        context["lapse_text"] = describe_lapse(bid)
    elif bid.status == BidStatus.PRICED:
        # A sweep ends it some seconds after its time.
        context["refresh_s"] = max(3, math.ceil((bid.price_offer.answer_by - now).total_seconds()))
    elif bid.status == BidStatus.REFUSED:
        context |= {
            "words": describe_bid_refusal(bid),
            "short_micros": (bid.winning_price_micros or 0) - bid.price_micros,
            "again_query": bid.winning_deadline_at
            and urlencode({"again": bid.pk, "deadline": format_local(bid.winning_deadline_at)}),
        }
    return render(request, "web/bid.html", context)


def _find_seconds(bid: Bid) -> float | None:
    """What the market took to decide a bid; its owner's answer to a price is not its time."""
    if bid.decided_at is None:
        return None
    since = bid.price_offer.answered_at if bid.asks_price else None
    return (bid.decided_at - (since or bid.created_at)).total_seconds()


@page
@require_GET
def download_proof(request: PageRequest, bid_id: str) -> HttpResponse:
    """What the page's own check reads, and what the owner may keep."""
    text = build_bid_proof(bid=get_bid(request.organisation, bid_id))
    return HttpResponse(text, content_type="application/json")


@page
@require_POST
def withdraw_one_bid(request: PageRequest, bid_id: str) -> HttpResponse:
    cancel_bid(bid=get_bid(request.organisation, bid_id), now=clock.now())
    return redirect("bid_detail", bid_id=bid_id)


@page
@require_POST
def answer_offer(request: PageRequest, bid_id: str) -> HttpResponse:
    """Take the price that a bid was told, or leave it."""
    bid = get_bid(request.organisation, bid_id)
    if bid.status == BidStatus.PRICED:
        try:
            answer_price(
                bid=bid,
                takes=request.POST.get("take") == "true",
                price_micros=int(request.POST.get("price_micros", 0)),
                now=clock.now(),
            )
        except (Conflict, ValueError):
            # The page says how it stands.
            return redirect("bid_detail", bid_id=bid_id)
        except UserError as error:
            # Too little money, say: it may be answered again.
            messages.error(request, error.message)
            return redirect(reverse("bid_detail", args=[bid_id]) + "?by=hand")
        wait_for_bid(bid=bid)
    return redirect("bid_detail", bid_id=bid_id)
