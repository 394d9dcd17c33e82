"""What the operator must know of money: whether the books are right, and what is stuck."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.common import clock
from marketplace.payments.freezes import lift_freeze
from marketplace.payments.gateway_calls import ATTEMPTS_ALERT
from marketplace.payments.ledger_checks import check_recent
from marketplace.payments.models import (
    AccountKind,
    CallStatus,
    Freeze,
    GatewayCall,
    GatewayComparison,
    Payout,
    PayoutStatus,
    Transfer,
)
from marketplace.payments.payout_calls import retry_payout
from marketplace.payments.reconciliation import reconcile
from marketplace.payments.seals import find_last_seal
from marketplace.payments.selectors import get_house_balances
from marketplace.payments.stripe_client import GatewayFault, is_configured
from marketplace.payments.transfer_reversals import list_recent_transfers, reverse_transfer
from marketplace.web.views.requests import PageRequest, operator_page, show_refusal

LISTED = 50


@operator_page
@require_GET
def show_money(request: PageRequest) -> HttpResponse:
    now = clock.now()
    context = {
        "check": check_recent(),
        "seal": find_last_seal(),
        "balances": {
            AccountKind(kind).label: amount for kind, amount in get_house_balances().items()
        },
        "is_configured": is_configured(),
        "comparison": GatewayComparison.objects.filter(made_at__isnull=False).first(),
        "transfers": list_recent_transfers(now=now),
        **_compare(is_asked="compare" in request.GET, now=now),
        **_list_alerts(now=now),
    }
    return render(request, "console/money.html", context)


def _compare(*, is_asked: bool, now: datetime) -> dict[str, Any]:
    """The gateway is asked only on demand: it may have thousands of movements."""
    if not is_asked or not is_configured():
        return {}
    try:
        return {"found": reconcile(now=now)}
    except GatewayFault as fault:
        return {"fault": str(fault)}


def _list_alerts(*, now: datetime) -> dict[str, Any]:
    stuck = Q(status=CallStatus.WAITING, attempts__gte=ATTEMPTS_ALERT) | Q(
        status=CallStatus.REFUSED
    )
    freezes = Freeze.objects.filter(ended_at=None).select_related("organisation")
    failed = Payout.objects.filter(status=PayoutStatus.FAILED).select_related("organisation")
    return {
        "calls": GatewayCall.objects.filter(stuck).order_by("-made_at")[:LISTED],
        "freezes": freezes.order_by("since_at")[:LISTED],
        "failed": failed.order_by("made_at")[:LISTED],
        "now": now,
    }


@operator_page
@require_POST
def end_freeze(request: PageRequest, freeze_id: str) -> HttpResponse:
    freeze = lift_freeze(
        freeze_id=freeze_id.replace("\0", ""), lifted_by=request.user, now=clock.now()
    )
    messages.success(request, f"{freeze.organisation} may bid again.")
    return redirect("operator_money")


@operator_page
@require_POST
def retry(request: PageRequest, payout_id: str) -> HttpResponse:
    if Payout.objects.filter(pk=payout_id.replace("\0", "")).exists():
        retry_payout(payout_id=payout_id, now=clock.now())
        messages.success(request, "The payout is tried again.")
    return redirect("operator_money")


@operator_page
@require_POST
def take_back(request: PageRequest, transfer_id: str) -> HttpResponse:
    """A transfer for work that turned out wrong, before it reached the earner's bank."""
    transfer = Transfer.objects.filter(pk=transfer_id.replace("\0", "")).first()
    with show_refusal(request):
        reverse_transfer(
            transfer_id=transfer_id,
            amount_cents=0 if transfer is None else transfer.amount_cents,
            reversed_by=request.user,
            now=clock.now(),
        )
        messages.success(request, "It is being taken back; the result stands here shortly.")
    return redirect("operator_money")
