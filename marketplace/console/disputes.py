"""What an operator decides about deliveries and results that owners dispute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from marketplace.auction.models import ResultDispute
from marketplace.auction.result_disputes import decide_result_dispute
from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.vendors.acceptance import decide_dispute
from marketplace.vendors.models import Dispute
from marketplace.web.views.requests import PageRequest, operator_page, show_refusal


@operator_page
@require_POST
def answer_dispute(request: PageRequest, dispute_id: str) -> HttpResponse:
    """``do``: owner or vendor, who was right."""
    known = Dispute.objects.select_related("vendor")
    _decide(request, known, dispute_id, decide=decide_dispute, against="vendor")
    return redirect("operator_vendors")


@operator_page
@require_POST
def answer_result_dispute(request: PageRequest, dispute_id: str) -> HttpResponse:
    """``do``: owner or provider, who was right."""
    known = ResultDispute.objects.select_related("bid")
    _decide(request, known, dispute_id, decide=decide_result_dispute, against="provider")
    return redirect("operator_providers")


def _decide(
    request: PageRequest,
    known: QuerySet[Any],
    dispute_id: str,
    *,
    decide: Callable[..., object],
    against: str,
) -> None:
    dispute = known.filter(pk=dispute_id.replace("\0", "")).first()
    if dispute is None:
        raise NotFound("unknown_dispute", "There is no such dispute.")
    side = request.POST.get("do")
    with show_refusal(request):
        if side not in ("owner", against):
            raise UserError("invalid_decision", f"Decide for the owner or for the {against}.")
        decide(
            dispute=dispute,
            is_for_owner=side == "owner",
            words=request.POST.get("words", ""),
            decided_by=request.user,
            now=clock.now(),
        )
        messages.success(request, f"Decided for the {side}.")
