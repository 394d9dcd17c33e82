"""How an organisation asks to list nodes, and the operator lets it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.fleet.models import Provider
from marketplace.fleet.services import approve_provider, ensure_provider
from marketplace.web.views.requests import PageRequest, operator_page, page


@page
@require_POST
def ask_to_provide(request: PageRequest) -> HttpResponse:
    ensure_provider(organisation=request.organisation, now=clock.now())
    return redirect("node_new")


@operator_page
@require_POST
def approve_to_provide(request: PageRequest, provider_id: str) -> HttpResponse:
    found = Provider.objects.filter(pk=provider_id.replace("\0", "")).first()
    if found is None:
        raise NotFound("unknown_provider", "There is no such provider.")
    provider = approve_provider(provider=found, approved_by=request.user, now=clock.now())
    messages.success(request, f"{provider} may list nodes.")
    return redirect("operator")
