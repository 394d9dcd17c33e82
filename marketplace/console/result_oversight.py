"""What an operator decides about results that owners dispute."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from marketplace.auction.models import ResultDispute
from marketplace.auction.result_disputes import decide_result_dispute
from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.web.views.requests import PageRequest, operator_page, show_refusal


@operator_page
@require_POST
def answer_result_dispute(request: PageRequest, dispute_id: str) -> HttpResponse:
    """``do``: owner or provider, who was right."""
    known = ResultDispute.objects.select_related("bid").filter(pk=dispute_id.replace("\0", ""))
    if (dispute := known.first()) is None:
        raise NotFound("unknown_dispute", "There is no such dispute.")
    side = request.POST.get("do")
    with show_refusal(request):
        if side not in ("owner", "provider"):
            raise UserError("invalid_decision", "Decide for the owner or for the provider.")
        decide_result_dispute(
            dispute=dispute,
            is_for_owner=side == "owner",
            words=request.POST.get("words", ""),
            decided_by=request.user,
            now=clock.now(),
        )
        messages.success(request, f"Decided for the {side}.")
    return redirect("operator_providers")
