"""Organisations as an operator oversees them: freezes, keys, and limits of new accounts."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.accounts.models import ApiKey, Organisation
from marketplace.accounts.new_accounts import filter_new
from marketplace.accounts.oversight import (
    REASON_MAX,
    find_organisations,
    freeze_key,
    lift_key_freeze,
    trust_organisation,
)
from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.selectors import list_present_nodes
from marketplace.payments.freezes import freeze_by_operator, list_freezes
from marketplace.payments.models import SpendingCap
from marketplace.payments.selectors import get_earnings, get_wallet, list_wallet_rows
from marketplace.web.views.requests import PageRequest, operator_page, show_refusal

LISTED = 100
#: Latest bids and movements of the wallet, and nodes, of one organisation.
BIDS_SHOWN, MOVES_SHOWN, NODES_SHOWN = 10, 10, 25


@operator_page
@require_GET
def show_organisations(request: PageRequest) -> HttpResponse:
    """Organisations by name, member or id, the newest first."""
    text = request.GET.get("q", "")
    found = list(find_organisations(text)[:LISTED])
    new = filter_new([each.pk for each in found], now=clock.now())
    frozen = {freeze.organisation_id for freeze in list_freezes(each.pk for each in found)}
    rows = [(each, each.pk in new, each.pk in frozen) for each in found]
    context = {"rows": rows, "text": text, "is_full": len(found) == LISTED}
    return render(request, "console/organisations.html", context)


@operator_page
@require_GET
def show_organisation(request: PageRequest, organisation_id: str) -> HttpResponse:
    organisation = _find(organisation_id)
    context = {
        "shown": organisation,
        "is_new": bool(filter_new([organisation.pk], now=clock.now())),
        "wallet": get_wallet(organisation=organisation),
        "earnings": get_earnings(organisation=organisation),
        "moves": list_wallet_rows(organisation=organisation, limit=MOVES_SHOWN),
        "caps": SpendingCap.objects.filter(organisation=organisation)
        .select_related("member", "api_key")
        .order_by("pk")[:NODES_SHOWN],
        "bids": Bid.objects.filter(organisation=organisation)
        .select_related("zone")
        .order_by("-pk")[:BIDS_SHOWN],
        "nodes": list_present_nodes(organisation)[:NODES_SHOWN],
        "members": organisation.memberships.select_related("user").order_by("created_at"),
        "freezes": list_freezes([organisation.pk]),
        "keys": ApiKey.objects.filter(organisation=organisation, revoked_at=None).order_by("name"),
        "reason_max": REASON_MAX,
    }
    return render(request, "console/organisation.html", context)


@operator_page
@require_POST
def freeze(request: PageRequest, organisation_id: str) -> HttpResponse:
    organisation = _find(organisation_id)
    with show_refusal(request):
        freeze_by_operator(
            organisation=organisation,
            reason=request.POST.get("reason", ""),
            frozen_by=request.user,
            now=clock.now(),
        )
        messages.success(request, f"{organisation} may neither bid nor be paid out.")
    return redirect("operator_organisation", organisation_id=organisation.pk)


@operator_page
@require_POST
def trust(request: PageRequest, organisation_id: str) -> HttpResponse:
    organisation = _find(organisation_id)
    trust_organisation(organisation=organisation, trusted_by=request.user, now=clock.now())
    messages.success(request, f"{organisation} has no limits of new accounts within a minute.")
    return redirect("operator_organisation", organisation_id=organisation.pk)


@operator_page
@require_POST
def switch_key_freeze(request: PageRequest, key_id: str) -> HttpResponse:
    """``do=lift`` lets it be used again."""
    try:
        if request.POST.get("do") == "lift":
            key = lift_key_freeze(key_id=key_id, lifted_by=request.user)
            messages.success(request, f"{key.name} can be used again.")
        else:
            key = freeze_key(
                key_id=key_id,
                reason=request.POST.get("reason", ""),
                frozen_by=request.user,
                now=clock.now(),
            )
            messages.success(request, f"Requests with {key.name} are refused.")
    except UserError as error:
        if isinstance(error, NotFound):
            raise
        messages.error(request, error.message)
        return redirect("operator_organisations")
    return redirect("operator_organisation", organisation_id=key.organisation.pk)


def _find(organisation_id: str) -> Organisation:
    found = Organisation.objects.filter(pk=organisation_id.replace("\0", "")).first()
    if found is None:
        raise NotFound("unknown_organisation", "There is no such organisation.")
    return found
