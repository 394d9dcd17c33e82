"""Paying by card: top-ups, the page where a card is given, saved cards, and webhooks."""

from __future__ import annotations

import logging
import uuid
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from marketplace.auction.bidding.card_bids import authorise_bid, place_authorised_bid
from marketplace.auction.bidding.place import NewBid, place_bid
from marketplace.auction.bidding.wait import wait_for_bid
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.common.money import format_usd_exact, to_micros
from marketplace.payments import stripe_client
from marketplace.payments.card_payments import (
    cancel_payment,
    find_payment,
    refresh_payment,
    to_cents,
)
from marketplace.payments.card_refunds import return_to_card
from marketplace.payments.gateway_calls import run_call
from marketplace.payments.models import (
    MICROS_PER_CENT,
    PAYMENT_OVER,
    CallKind,
    CallStatus,
    CardPayment,
    GatewayCall,
    PaymentPurpose,
    PaymentStatus,
)
from marketplace.payments.stripe_client import GatewayFault
from marketplace.payments.stripe_gateway import Intent
from marketplace.payments.top_ups import list_cards, remove_card, set_wallet_rules, start_top_up
from marketplace.payments.webhooks import BODY_MAX, receive_webhook
from marketplace.web.views.requests import PageRequest, money_page, page, show_refusal

log = logging.getLogger(__name__)

NEW_CARD = "new"
#: Seconds after which a page looks whether the gateway has answered.
LOOK_AGAIN_S = 2


@money_page
@require_POST
def top_up(request: PageRequest) -> HttpResponse:
    """Start a top-up; its page asks for a card, unless a saved one pays."""
    now = clock.now()
    try:
        payment = start_top_up(
            organisation=request.organisation,
            amount_micros=read_usd(request, "usd"),
            asked_by=request.user,
            key=f"form-{request.POST.get('key', '')[:64]}",
            card_id=read_card(request),
            saves_card="save" in request.POST,
            now=now,
        )
    except UserError as error:
        messages.error(request, error.message)
        return redirect("wallet")
    make_payment_intent(payment, now=now)
    return redirect("card_payment", payment_id=payment.pk)


def read_usd(request: PageRequest, name: str) -> int:
    """Micro-dollars somebody typed."""
    return to_micros(request.POST.get(name, "").strip().removeprefix("$"), param=name)


def read_card(request: PageRequest) -> str | None:
    """The saved card that was chosen; ``None`` for a new one."""
    chosen = request.POST.get("card", NEW_CARD)
    return None if chosen == NEW_CARD else chosen


def build_pay_choice(request: PageRequest) -> dict[str, Any]:
    """Build what ``parts/pay_with.html`` shows: the wallet and cards, and which was chosen."""
    takes_cards = stripe_client.is_configured()
    return {
        "takes_cards": takes_cards,
        "is_test_money": stripe_client.is_test_money(),
        "cards": list_cards(request.organisation) if takes_cards else [],
        "pays_by": request.POST.get("pay", "wallet"),
        "pays_with": request.POST.get("card", NEW_CARD),
    }


def place_paid_bid(request: PageRequest, asked: NewBid, *, now: datetime) -> HttpResponse:
    """Place a bid that the wallet pays, or ask the chosen card first; go on to the next page.

    Raises
    ------
    UserError
        The bid is refused as it stands, or cannot be paid; nothing is stored.
    """
    if request.POST.get("pay") != "card":
        return redirect("bid_detail", bid_id=wait_for_bid(bid=place_bid(asked=asked, now=now)).pk)
    payment = authorise_bid(asked=asked, asked_by=request.user, card_id=read_card(request), now=now)
    make_payment_intent(payment, now=now)
    return redirect("card_payment", payment_id=payment.pk)


def make_payment_intent(payment: CardPayment, *, now: datetime) -> None:
    """Make the outbox's call at once, so that the page can go on; it is not lost otherwise."""
    call = GatewayCall.objects.get(kind=CallKind.INTENT, subject=payment.pk)
    run_call(call_id=call.pk, now=now)


@page
@require_GET
def show_payment(request: PageRequest, payment_id: str) -> HttpResponse:
    """How a payment stands: a form for a card, the bank's question, or the receipt."""
    now = clock.now()
    payment = find_payment(request.organisation, payment_id)
    intent: Intent | None = None
    is_down = False
    try:
        if payment.status not in PAYMENT_OVER:
            payment, intent = refresh_payment(payment=payment, now=now)
    except GatewayFault:
        log.warning("the gateway could not be asked about %s", payment.pk)
        is_down = True
    if payment.purpose == PaymentPurpose.BID:
        payment = find_payment(request.organisation, payment_id)
        bid = place_authorised_bid(payment=payment, now=now)
        if bid is not None:
            return redirect("bid_detail", bid_id=wait_for_bid(bid=bid).pk)
        payment.refresh_from_db()
    start = _find_start(payment)
    is_refused = start is not None and start.status == CallStatus.REFUSED
    is_over = payment.status in PAYMENT_OVER
    # A worker may have its answer since the payment was read: the page is wanted again then too.
    is_waiting = intent is None and not is_over and not is_refused
    is_down = is_waiting and (is_down or (start is not None and bool(start.error_code)))
    is_open = payment.status == PaymentStatus.OPEN and intent is not None
    context: dict[str, Any] = {
        "payment": payment,
        "is_down": is_down,
        "is_asked": is_waiting and not is_down,
        "refused": start if is_refused else None,
        "wants_card": is_open,
        "wants_bank": payment.status == PaymentStatus.ACTION and intent is not None,
        "action_url": intent.action_url if intent else "",
        "is_paid": payment.status == PaymentStatus.PAID,
        "is_over": is_over,
        "is_bid": payment.purpose == PaymentPurpose.BID,
        "is_test_money": stripe_client.is_test_money(),
        "form_key": build_form_key(),
        "refunds": payment.refunds.order_by("asked_at"),
        "setup": {
            "publishable_key": settings.STRIPE_PUBLISHABLE_KEY,
            "client_secret": intent.client_secret if is_open and intent else "",
            "return_url": f"{settings.PUBLIC_URL}{request.path}",
            "api_url": settings.STRIPE_API_URL,
        },
    }
    response = render(request, "web/card_payment.html", context)
    if is_waiting:
        # A worker asks the gateway, now or again.
        response["Refresh"] = str(LOOK_AGAIN_S)
    # Only this page talks to the gateway.
    response._csp_update = _list_sources()  # type: ignore[attr-defined]
    return response


def _find_start(payment: CardPayment) -> GatewayCall | None:
    """The call that starts a payment, while it has not been answered with a yes."""
    calls = GatewayCall.objects.filter(kind=CallKind.INTENT, subject=payment.pk)
    return calls.exclude(status=CallStatus.DONE).first()


def _list_sources() -> dict[str, list[str]]:
    if stripe_client.is_test_money():
        return {"connect-src": [settings.STRIPE_API_URL]}
    return {
        "script-src": ["https://js.stripe.com"],
        "frame-src": ["https://js.stripe.com", "https://hooks.stripe.com"],
        "connect-src": ["https://api.stripe.com"],
    }


@page
@require_POST
def give_up(request: PageRequest, payment_id: str) -> HttpResponse:
    payment = find_payment(request.organisation, payment_id)
    cancel_payment(payment_id=payment.pk, now=clock.now())
    messages.success(request, "Given up. Nothing is taken from the card.")
    return redirect("wallet")


@money_page
@require_POST
def send_back(request: PageRequest, payment_id: str) -> HttpResponse:
    """Unspent money of a top-up back to its card."""
    payment = find_payment(request.organisation, payment_id)
    with show_refusal(request):
        amount = read_usd(request, "usd")
        if amount % MICROS_PER_CENT:
            raise UserError("whole_cents", "Cards take whole cents.", param="usd")
        refund = return_to_card(
            payment_id=payment.pk,
            amount_cents=to_cents(amount),
            reference=request.POST.get("key", "")[:64],
            now=clock.now(),
        )
        paid = format_usd_exact(refund.amount_micros + refund.fee_micros)
        amount = format_usd_exact(refund.amount_micros)
        messages.success(request, f"{amount} is on its way back. The wallet paid {paid}.")
    return redirect("card_payment", payment_id=payment.pk)


@money_page
@require_POST
def change_rules(request: PageRequest) -> HttpResponse:
    """Notice of a low wallet, and automatic top-ups."""
    with show_refusal(request):
        card_id = request.POST.get("card") or None
        set_wallet_rules(
            organisation=request.organisation,
            notice_below_micros=_read_optional(request, "notice_below"),
            auto_card_id=card_id,
            auto_below_micros=(_read_optional(request, "auto_below") or 0) if card_id else 0,
            auto_amount_cents=(
                to_cents(_read_optional(request, "auto_amount") or 0) if card_id else 0
            ),
        )
        messages.success(request, "Saved.")
    return redirect("wallet")


def _read_optional(request: PageRequest, name: str) -> int | None:
    return read_usd(request, name) if request.POST.get(name, "").strip() else None


@money_page
@require_POST
def forget_card(request: PageRequest, card_id: str) -> HttpResponse:
    remove_card(organisation=request.organisation, card_id=card_id, now=clock.now())
    messages.success(request, "The card is removed.")
    return redirect("wallet")


@csrf_exempt
@require_POST
def take_webhook(request: HttpRequest) -> HttpResponse:
    """An event of the gateway, believed for its signature alone."""
    if int(request.headers.get("content-length") or 0) > BODY_MAX:
        return HttpResponse(status=413)
    try:
        receive_webhook(
            body=request.body,
            signature=request.headers.get("stripe-signature", ""),
            now=clock.now(),
        )
    except UserError as error:
        return HttpResponse(error.code, status=error.status, content_type="text/plain")
    return HttpResponse(status=200)


def build_form_key() -> str:
    """Names one form, so that sending it twice pays once."""
    return uuid.uuid4().hex
