"""How an organisation asks to list nodes, and how the operator lets it, or no longer."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.auction.result_disputes import list_open_disputes
from marketplace.checks.reliability import measure_reliability
from marketplace.checks.scores import find_score_check
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.fleet.models import ABSENT, JoinToken, Node, Provider
from marketplace.fleet.selectors import list_open_join_tokens, list_providers
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
    """Every provider with its nodes and open join commands, and what an operator may do to them."""
    now = clock.now()
    nodes: dict[str, list[Node]] = {}
    present = Node.objects.exclude(status__in=ABSENT).select_related("zone", "suspended_by")
    for node in present.order_by("name"):
        nodes.setdefault(node.provider_id, []).append(node)
    rows: list[dict[str, Any]] = [
        {
            "provider": provider,
            "nodes": nodes.get(provider.pk, []),
            "tokens": list_open_join_tokens(provider, now=now),
        }
        for provider in list_providers()
    ]
    reliability = measure_reliability([node.pk for row in rows for node in row["nodes"]], now=now)
    for row in rows:
        row["nodes"] = [(node, reliability[node.pk]) for node in row["nodes"]]
    disputes = [
        (dispute, find_score_check(Job.objects.get(bid_id=dispute.bid_id)))
        for dispute in list_open_disputes()
    ]
    context = {"rows": rows, "disputes": disputes, "now": now}
    return render(request, "console/providers.html", context)


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
