"""What providers and the operator see and do. One domain call per view."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import Avg, Count, F, Max, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.accounts.models import Organisation, User
from marketplace.auction.models import Bid, BidStatus, MarketHead
from marketplace.auction.selectors import (
    MarketNow,
    list_bids_set_aside,
    list_zone_pricing,
    load_market,
)
from marketplace.common import clock
from marketplace.common.errors import NotFound, SystemFault, UserError
from marketplace.common.money import count_decimals, to_micros
from marketplace.console.forms import NodeForm
from marketplace.fleet.models import Node, NodeStatus, Policy, Zone
from marketplace.fleet.selectors import find_provider, list_open_zones, list_waiting_providers
from marketplace.fleet.services import (
    create_join_token,
    drain_node,
    ensure_provider,
    set_node_ask,
    set_zone_policy,
    undrain_node,
)
from marketplace.jobs.models import Job, Slice
from marketplace.payments.selectors import earnings, house_balances, ledger_check, list_earnings
from marketplace.tiers.selectors import list_machines


class PageRequest(HttpRequest):
    user: User  # type: ignore[assignment]
    organisation: Organisation


def page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @never_cache
    @login_required
    @wraps(view)
    def seen(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        return view(cast(PageRequest, request), *args, **kwargs)

    return seen


@page
@require_GET
def node_list(request: PageRequest) -> HttpResponse:
    return render(request, "console/nodes.html", _nodes_context(request))


def _nodes_context(request: PageRequest) -> dict[str, Any]:
    now = clock.now()
    organisation = request.organisation
    nodes = list(
        Node.objects.filter(provider__organisation=organisation)
        .exclude(status=NodeStatus.LEFT)
        .select_related("zone", "gpu_type")
        .order_by("name")
    )
    running = dict(
        Slice.objects.filter(node__in=nodes, status="open")
        .values_list("node")
        .annotate(Count("pk"))
    )
    books = _find_books(nodes, now=now)
    rows = {row.node_id: row for book in books for row in book.rows}
    own = [rows[node.pk] for node in nodes if node.pk in rows]
    sold = [share for row in own for share in row.compute_sold]
    lines = list_earnings(organisation=organisation, limit=12)
    return {
        "now": now,
        "nodes": [
            {
                "node": node,
                "is_up": node.status in (NodeStatus.ONLINE, NodeStatus.DRAINING),
                "jobs": running.get(node.pk, 0),
                "sold": _mean(rows[node.pk].compute_sold) if node.pk in rows else None,
                "band": _ask_band(node),
            }
            for node in nodes
        ],
        "online": sum(node.status == NodeStatus.ONLINE for node in nodes),
        "heats": _group_heat_rows(nodes, books),
        "sold_share": _mean(sold),
        "earnings": earnings(organisation=organisation),
        "lines": lines,
        "decimals": count_decimals(line.amount_micros for line in lines),
        "earned_24h": sum(
            line.amount_micros
            for line in list_earnings(organisation=organisation, limit=1000)
            if line.accrued_at > now - timedelta(hours=24)
        ),
        "zones": list_open_zones(),
    }


def _mean(values: Any) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _find_books(nodes: list[Node], *, now: datetime) -> list[MarketNow]:
    """The markets these nodes are in; a zone whose log is broken has no prices to show."""
    books = []
    for zone in sorted({node.zone for node in nodes}, key=lambda zone: zone.name):
        try:
            books.append(load_market(zone, now=now))
        except SystemFault:
            continue
    return books


def _group_heat_rows(nodes: list[Node], books: list[MarketNow]) -> list[dict[str, Any]]:
    """One map for each zone, for slots differ between zones."""
    own = {node.pk: node for node in nodes}
    heats = []
    for book in books:
        rows = [row for row in book.rows if row.node_id in own]
        if rows:
            heats.append({"book": book, "rows": rows, "nodes": [own[row.node_id] for row in rows]})
    return heats


def _ask_band(node: Node) -> dict[str, int] | None:
    """The middle 80 % of asks for the same GPU in the zone."""
    asks = sorted(
        Node.objects.filter(zone=node.zone, gpu_type=node.gpu_type)
        .exclude(status=NodeStatus.LEFT)
        .values_list("ask_micros", flat=True)
    )
    if len(asks) < 3:
        return None
    last = len(asks) - 1
    return {
        "low": asks[round(last * 0.1)],
        "middle": asks[round(last / 2)],
        "high": asks[round(last * 0.9)],
    }


@sensitive_variables("secret")
@page
@require_http_methods(["GET", "POST"])
def node_new(request: PageRequest) -> HttpResponse:
    """Terms of a new node, then the one command that lists it; before, the operator's leave."""
    provider = find_provider(request.organisation)
    if settings.PROVIDERS_NEED_APPROVAL and (provider is None or provider.approved_at is None):
        return render(request, "console/provider_ask.html", {"provider": provider})
    form = NodeForm(request.POST or None, zones=list_open_zones(), initial={"ask": "0.10"})
    context: dict[str, Any] = {"form": form, "public_url": settings.PUBLIC_URL}
    if request.method == "POST" and form.is_valid():
        now = clock.now()
        try:
            token, secret = create_join_token(
                zone=form.cleaned_data["zone"],
                provider=ensure_provider(organisation=request.organisation, now=now),
                created_by=request.user,
                ask_micros=to_micros(form.cleaned_data["ask"], param="ask"),
                tier=form.cleaned_data["tier"],
                available_until_at=form.cleaned_data["until"],
                now=now,
            )
        except UserError as error:
            form.add_error(
                "ask" if error.code in ("invalid_amount", "invalid_ask") else None, error.message
            )
        else:
            # In the answer to the POST itself: the secret is in no address and no session.
            context |= {"token": token, "secret": secret}
    return render(request, "console/node_new.html", context)


def _node_of(request: PageRequest, node_id: str) -> Node:
    node = (
        Node.objects.select_related("zone")
        .filter(pk=node_id.replace("\0", ""), provider__organisation=request.organisation)
        .first()
    )
    if node is None:
        raise NotFound("unknown_node", f"{request.organisation.name} lists no such node.")
    return node


@page
@require_POST
def node_ask(request: PageRequest, node_id: str) -> HttpResponse:
    node = _node_of(request, node_id)
    text = request.POST.get("ask", "").strip().removeprefix("$")
    try:
        set_node_ask(
            node=node, ask_micros=to_micros(text, param="ask"), set_by=request.user, now=clock.now()
        )
    except UserError as error:
        messages.error(request, error.message)
    else:
        messages.success(
            request, f"{node.name} asks ${text} from the next sale on; sold slots keep theirs."
        )
    return redirect("node_list")


@page
@require_POST
def node_drain_switch(request: PageRequest, node_id: str) -> HttpResponse:
    node = _node_of(request, node_id)
    if node.status == NodeStatus.DRAINING:
        undrain_node(node=node, now=clock.now())
    else:
        drain_node(node=node, now=clock.now())
    return redirect("node_list")


def operator_page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    @page
    @wraps(view)
    def seen(request: PageRequest, *args: object, **kwargs: object) -> HttpResponse:
        if not request.user.is_operator:
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return seen


@operator_page
@require_GET
def operator(request: PageRequest) -> HttpResponse:
    now = clock.now()
    day = Bid.objects.filter(created_at__gt=now - timedelta(hours=24))
    figures = day.aggregate(
        bids=Count("pk", filter=~Q(status=BidStatus.CANCELLED)),
        admitted=Count("pk", filter=Q(status=BidStatus.ADMITTED)),
        on_price=Count("pk", filter=Q(refusal="price")),
        on_time=Count("pk", filter=Q(refusal__in=("window", "capacity"))),
        on_memory=Count("pk", filter=Q(refusal="memory")),
        pending=Count("pk", filter=Q(status=BidStatus.PENDING)),
        revenue=Sum("payment_micros", filter=Q(status=BidStatus.ADMITTED)),
        offered=Sum("price_micros", filter=Q(status=BidStatus.ADMITTED)),
        refunds=Sum("refund_micros", filter=Q(status=BidStatus.ADMITTED)),
        decide=Avg(F("decided_at") - F("created_at")),
        slowest=Max(F("decided_at") - F("created_at")),
    )
    balances = house_balances()
    context = {
        "now": now,
        "figures": figures,
        "admitted_share": figures["admitted"] / figures["bids"] if figures["bids"] else None,
        "decide_s": figures["decide"].total_seconds() if figures["decide"] else None,
        "slowest_s": figures["slowest"].total_seconds() if figures["slowest"] else None,
        "hours": _hours(now),
        "check": ledger_check(),
        "balances": balances,
        "decimals": count_decimals(balances.values()),
        "heads": MarketHead.objects.select_related("zone").order_by("zone__name"),
        "nodes": Node.objects.exclude(status=NodeStatus.LEFT)
        .select_related("zone", "gpu_type", "provider__organisation")
        .order_by("zone__name", "name"),
        "bids": Bid.objects.select_related("zone", "organisation").order_by("-arrival")[:15],
        "jobs": dict(Job.objects.values_list("status").annotate(Count("pk"))),
        "machines": list_machines(now=now),
        "zones": list_zone_pricing(),
        "policies": Policy.choices,
        "set_aside": list_bids_set_aside(),
        "waiting": list_waiting_providers(),
        "silent": Node.objects.filter(status=NodeStatus.OFFLINE).count(),
    }
    return render(request, "console/operator.html", context)


@operator_page
@require_POST
def zone_policy(request: PageRequest, zone_id: str) -> HttpResponse:
    zone = Zone.objects.filter(pk=zone_id.replace("\0", "")).first()
    if zone is None:
        raise NotFound("unknown_zone", "There is no such zone.")
    policy = request.POST.get("policy", "")
    try:
        set_zone_policy(zone=zone, policy=policy, set_by=request.user, now=clock.now())
    except UserError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"{zone.name} is set to {Policy(policy).label.lower()}.")
    return redirect("operator")


def _hours(now: datetime) -> list[dict[str, Any]]:
    """Admitted and refused in each of the last 24 hours, as heights of bars."""
    counts = [[0, 0] for _ in range(24)]
    day = Bid.objects.filter(decided_at__gt=now - timedelta(hours=24))
    for decided_at, status in day.values_list("decided_at", "status"):
        hour = min(23, int((now - decided_at).total_seconds() // 3600))
        counts[23 - hour][status == BidStatus.REFUSED] += 1
    most = max(1, *(sum(pair) for pair in counts))
    return [
        {
            "x": f"{index / 24 * 100:.2f}%",
            "admitted": admitted,
            "refused": refused,
            "admitted_y": f"{100 - admitted / most * 100:.1f}%",
            "admitted_h": f"{admitted / most * 100:.1f}%",
            "refused_y": f"{100 - (admitted + refused) / most * 100:.1f}%",
            "refused_h": f"{refused / most * 100:.1f}%",
            "at": now - timedelta(hours=23 - index),
        }
        for index, (admitted, refused) in enumerate(counts)
    ]
