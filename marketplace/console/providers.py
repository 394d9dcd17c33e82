"""How an organisation asks to list nodes, and how the operator lets it, or no longer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.auction.result_disputes import list_open_disputes
from marketplace.checks.reliability import measure_reliability
from marketplace.checks.scores import find_score_check
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.console.queries_in_address import read_text
from marketplace.fleet.models import JoinToken, Node, Provider
from marketplace.fleet.selectors import (
    count_present_nodes,
    list_node_page,
    list_open_join_tokens,
    list_providers,
)
from marketplace.fleet.services import (
    approve_provider,
    ensure_provider,
    lift_node_suspension,
    lift_provider_suspension,
    revoke_join_token,
    revoke_node_token,
    set_provider_verified,
    suspend_node,
    suspend_provider,
    withdraw_approval,
)
from marketplace.jobs.models import Job
from marketplace.web.views.requests import PageRequest, operator_page, owner_page

PROVIDERS_PER_PAGE = 20
#: Of each provider on a page, and of one that is shown alone.
NODES_OF_EACH, NODES_PER_PAGE = 10, 50


@owner_page
@require_POST
def ask_to_provide(request: PageRequest) -> HttpResponse:
    ensure_provider(organisation=request.organisation, now=clock.now())
    return redirect("node_new")


@operator_page
@require_POST
def approve_to_provide(request: PageRequest, provider_id: str) -> HttpResponse:
    found = _find_provider(provider_id)
    provider = approve_provider(provider=found, approved_by=request.user, now=clock.now())
    messages.success(request, f"{provider} may list nodes.")
    return redirect("operator")


@operator_page
@require_GET
def show_providers(request: PageRequest) -> HttpResponse:
    """List providers with their nodes and open join commands, and what an operator may do to them.

    ``provider`` shows one of them alone, with its nodes by name after ``after``; else ``from`` is
    the provider with which the page begins.
    """
    now, after = clock.now(), read_text(request, "after")
    if only := read_text(request, "provider"):
        shown, following = [_find_provider(only)], None
    else:
        shown, following = _list_page(read_text(request, "from"))
    limit = NODES_PER_PAGE if only else NODES_OF_EACH
    rows = [_load_row(each, after=after if only else "", limit=limit, now=now) for each in shown]
    disputes = [
        (dispute, find_score_check(Job.objects.get(bid_id=dispute.bid_id)))
        for dispute in list_open_disputes()
    ]
    context = {"rows": rows, "disputes": disputes, "now": now, "following": following}
    context |= {"only": only, "after": after, "is_later": "from" in request.GET}
    return render(request, "console/providers.html", context)


def _list_page(first: str) -> tuple[list[Provider], str | None]:
    """A page of providers by name from one of them on, and with which the next one begins."""
    found = list_providers()
    if first:
        begin = _find_provider(first)
        name = begin.organisation.name
        later = Q(organisation__name__gt=name) | Q(organisation__name=name, pk__gte=begin.pk)
        found = found.filter(later)
    page = list(found[: PROVIDERS_PER_PAGE + 1])
    return page[:PROVIDERS_PER_PAGE], page[-1].pk if len(page) > PROVIDERS_PER_PAGE else None


def _load_row(provider: Provider, *, after: str, limit: int, now: datetime) -> dict[str, Any]:
    organisation = provider.organisation
    nodes, following = list_node_page(organisation, after=after, limit=limit)
    past = measure_reliability([node.pk for node in nodes], now=now)
    return {
        "provider": provider,
        "nodes": [(node, past[node.pk]) for node in nodes],
        "following": following,
        "all_nodes": count_present_nodes(organisation).total(),
        "tokens": list_open_join_tokens(provider, now=now)[:limit],
    }


@operator_page
@require_POST
def switch_provider_suspension(request: PageRequest, provider_id: str) -> HttpResponse:
    provider = _find_provider(provider_id)
    if provider.suspended_at is None:
        suspend_provider(
            provider=provider,
            suspended_by=request.user,
            reason=request.POST.get("reason", ""),
            now=clock.now(),
        )
        words = f"{provider} is suspended. Its nodes run nothing, and their jobs are planned again."
    else:
        lift_provider_suspension(provider=provider, lifted_by=request.user, now=clock.now())
        words = f"{provider} may list and sell nodes again."
    messages.success(request, words)
    return redirect("operator_providers")


@operator_page
@require_POST
def switch_verification(request: PageRequest, provider_id: str) -> HttpResponse:
    provider = _find_provider(provider_id)
    provider = set_provider_verified(
        provider=provider,
        is_verified=provider.verified_at is None,
        set_by=request.user,
        now=clock.now(),
    )
    is_now = "is verified" if provider.verified_at else "is not verified any more"
    messages.success(request, f"{provider} {is_now}.")
    return redirect("operator_providers")


@operator_page
@require_POST
def end_approval(request: PageRequest, provider_id: str) -> HttpResponse:
    provider = _find_provider(provider_id)
    withdraw_approval(provider=provider, withdrawn_by=request.user, now=clock.now())
    messages.success(
        request,
        f"{provider} lists nothing more. Its nodes are drained: what was sold of them is served. "
        "It waits for approval on the overview.",
    )
    return redirect("operator_providers")


@operator_page
@require_POST
def switch_node_suspension(request: PageRequest, node_id: str) -> HttpResponse:
    node = _find_node(node_id)
    if node.suspended_at is None:
        suspend_node(
            node=node,
            suspended_by=request.user,
            reason=request.POST.get("reason", ""),
            now=clock.now(),
        )
        words = f"{node.name} is suspended. It runs nothing, and its jobs are planned again."
    else:
        lift_node_suspension(node=node, lifted_by=request.user, now=clock.now())
        words = f"{node.name} is trusted with jobs again."
    messages.success(request, words)
    return redirect("operator_providers")


@operator_page
@require_POST
def end_any_node_token(request: PageRequest, node_id: str) -> HttpResponse:
    node = revoke_node_token(node=_find_node(node_id), now=clock.now())
    messages.success(request, f"The credentials of {node.name} are revoked.")
    return redirect("operator_providers")


@operator_page
@require_POST
def end_any_join_token(request: PageRequest, token_id: str) -> HttpResponse:
    token = JoinToken.objects.filter(pk=token_id.replace("\0", "")).first()
    if token is None:
        raise NotFound("unknown_join_token", "There is no such join token.")
    revoke_join_token(token=token, now=clock.now())
    messages.success(request, "The join command is revoked; it lists no node.")
    return redirect("operator_providers")


def _find_provider(provider_id: str) -> Provider:
    found = Provider.objects.select_related("organisation").filter(pk=provider_id.replace("\0", ""))
    if (provider := found.first()) is None:
        raise NotFound("unknown_provider", "There is no such provider.")
    return provider


def _find_node(node_id: str) -> Node:
    found = Node.objects.select_related("zone").filter(pk=node_id.replace("\0", ""))
    if (node := found.first()) is None:
        raise NotFound("unknown_node", "There is no such node.")
    return node
