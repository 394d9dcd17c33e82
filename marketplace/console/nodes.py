"""A provider's nodes: what they earn, what they ask, and how they come and go."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.accounts.models import Organisation
from marketplace.auction.models import WorkShare
from marketplace.auction.node_hours import change_sale_hours
from marketplace.auction.pay_rule import PAY_RULE
from marketplace.auction.selectors import MarketNow, load_market
from marketplace.checks.reliability import measure_reliability
from marketplace.common import clock
from marketplace.common.errors import MarketFault, UserError
from marketplace.common.money import count_decimals, to_micros
from marketplace.console.forms import NodeForm, SaleHoursForm
from marketplace.console.join_progress import load_joining
from marketplace.console.queries_in_address import read_text
from marketplace.fleet.device_timeslices import find_rest
from marketplace.fleet.install_ways import list_install_ways
from marketplace.fleet.models import JoinToken, Node, NodeStatus
from marketplace.fleet.selectors import (
    count_present_nodes,
    find_ask_band,
    find_provider,
    get_own_join_token,
    get_own_node,
    list_node_page,
    list_open_join_tokens,
    list_open_zones,
)
from marketplace.fleet.services import (
    ListingTerms,
    ask_node_to_leave,
    drain_node,
    open_listing,
    reset_node_speed,
    revoke_join_token,
    revoke_node_token,
    set_node_ask,
    undrain_node,
)
from marketplace.jobs.context_switch_stats import measure_switches
from marketplace.jobs.selectors import count_running_jobs
from marketplace.payments.selectors import get_earnings, list_earnings, sum_earned
from marketplace.web.views.requests import PageRequest, owner_page, page, show_refusal
from workers.protocol.joining import CUDA_MAJOR, DISK_BESIDE_BASE_GB, LEAST_DRIVER

EARNINGS_LISTED = 12
NODES_PER_PAGE = 50
_HEARD = (NodeStatus.ONLINE, NodeStatus.DRAINING, NodeStatus.RESTING)
#: Where the page shows what is wrong with the terms of a new node.
_FIELDS = {"invalid_amount": "ask", "invalid_ask": "ask", "invalid_hours": "opens"}


@page
@require_GET
def show_nodes(request: PageRequest) -> HttpResponse:
    after = read_text(request, "after")
    context = _load_nodes_page(request.organisation, after=after, now=clock.now())
    return render(request, "console/nodes.html", context)


def _load_nodes_page(organisation: Organisation, *, after: str, now: datetime) -> dict[str, Any]:
    nodes, following = list_node_page(organisation, after=after, limit=NODES_PER_PAGE)
    statuses = count_present_nodes(organisation)
    bands = {(node.zone_id, node.gpu_type_id): node for node in nodes}
    bands = {kind: find_ask_band(node) for kind, node in bands.items()}
    running = count_running_jobs(nodes)
    books = _find_books(nodes, now=now)
    rows = {row.node_id: row for book in books for row in book.rows}
    own = [rows[node.pk] for node in nodes if node.pk in rows]
    sold = [share for row in own for share in row.compute_sold]
    switches = measure_switches([node.pk for node in nodes])
    reliability = measure_reliability([node.pk for node in nodes], now=now)
    lines = list_earnings(organisation=organisation, limit=EARNINGS_LISTED)
    works = _list_work(organisation, [line.reference for line in lines])
    return {
        "now": now,
        "nodes": [
            {
                "node": node,
                "is_heard": node.status in _HEARD,
                "jobs": running.get(node.pk, 0),
                "sold": _mean(rows[node.pk].compute_sold) if node.pk in rows else None,
                "band": bands[node.zone_id, node.gpu_type_id],
                "switches": switches.get(node.pk),
                "past": reliability[node.pk],
                "rest": find_rest(node, now=now),
            }
            for node in nodes
        ],
        "after": after,
        "following": following,
        "all_nodes": statuses.total(),
        "online": statuses[NodeStatus.ONLINE],
        "resting": statuses[NodeStatus.RESTING],
        "heats": _group_heat_rows(nodes, books),
        "sold_share": _mean(sold),
        "earnings": get_earnings(organisation=organisation),
        "lines": [(line, works.get(line.reference, ())) for line in lines],
        "pay_rule": PAY_RULE,
        "decimals": count_decimals(line.amount_micros for line in lines),
        "earned_24h": sum_earned(organisation=organisation, since=now - timedelta(hours=24)),
        "zones": list_open_zones(),
        "tokens": _list_tokens(organisation, now=now),
    }


def _list_tokens(organisation: Organisation, *, now: datetime) -> list[JoinToken]:
    provider = find_provider(organisation)
    return [] if provider is None else list(list_open_join_tokens(provider, now=now))


def _list_work(organisation: Organisation, references: list[str]) -> dict[str, list[WorkShare]]:
    """What the organisation's nodes did for each line of its earnings."""
    bids = {
        part: line for line in references for part in line.split(":") if part.startswith("bid_")
    }
    works: dict[str, list[WorkShare]] = {}
    shares = WorkShare.objects.filter(organisation=organisation, bid__in=bids)
    for share in shares.select_related("node").order_by("node__name"):
        works.setdefault(bids[share.bid_id], []).append(share)
    return works


def _mean(values: Any) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _find_books(nodes: list[Node], *, now: datetime) -> list[MarketNow]:
    """The markets these nodes are in; a zone whose log is broken has no prices to show."""
    books = []
    for zone in sorted({node.zone for node in nodes}, key=lambda zone: zone.name):
        try:
            books.append(load_market(zone, now=now))
        except MarketFault:
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


@sensitive_variables("secret")
@owner_page
@require_http_methods(["GET", "POST"])
def add_node(request: PageRequest) -> HttpResponse:
    """Terms of a new node, then the one command that lists it; before, the operator's leave."""
    provider = find_provider(request.organisation)
    if settings.PROVIDERS_NEED_APPROVAL and (provider is None or provider.approved_at is None):
        return render(request, "console/provider_ask.html", {"provider": provider})
    form = NodeForm(request.POST or None, zones=list_open_zones())
    context: dict[str, Any] = {
        "form": form,
        "cuda_major": CUDA_MAJOR,
        "least_driver": LEAST_DRIVER[CUDA_MAJOR],
        "disk_gb": DISK_BESIDE_BASE_GB,
    }
    if request.method == "POST" and form.is_valid():
        now = clock.now()
        try:
            token, secret = open_listing(
                organisation=request.organisation,
                zone=form.cleaned_data["zone"],
                created_by=request.user,
                terms=ListingTerms(
                    ask_micros=to_micros(form.cleaned_data["ask"], param="ask"),
                    tier=form.cleaned_data["tier"],
                    available_until_at=form.cleaned_data["until"],
                    opens=form.cleaned_data["opens"],
                    closes=form.cleaned_data["closes"],
                    is_shared=form.cleaned_data["is_shared"],
                ),
                nodes=form.cleaned_data["nodes"] or 1,
                now=now,
            )
        except UserError as error:
            form.add_error(_FIELDS.get(error.code), error.message)
        else:
            # In the answer to the POST itself: the secret is in no address and no session.
            is_shared = form.cleaned_data["is_shared"]
            ways = list_install_ways(token, secret, is_shared=is_shared)
            context |= {"secret": secret, "ways": ways, "is_shared": is_shared}
            context |= load_joining(token)
    return render(request, "console/node_new.html", context)


@owner_page
@require_POST
def change_ask(request: PageRequest, node_id: str) -> HttpResponse:
    node = get_own_node(request.organisation, node_id)
    text = request.POST.get("ask", "").strip().removeprefix("$")
    with show_refusal(request):
        set_node_ask(
            node=node, ask_micros=to_micros(text, param="ask"), set_by=request.user, now=clock.now()
        )
        messages.success(
            request, f"{node.name} asks ${text} from the next sale on; sold slots keep theirs."
        )
    return _back_to(node)


@owner_page
@require_POST
def switch_drain(request: PageRequest, node_id: str) -> HttpResponse:
    """Take a node off sale, or put it back, as the form says: one that is sent twice is once."""
    node = get_own_node(request.organisation, node_id)
    if request.POST.get("do") != "undrain":
        drain_node(node=node, now=clock.now())
        words = (
            f"{node.name} sells nothing more. What was sold is still served; the node stays here, "
            "drained, until you put it back on sale or take it away."
        )
    else:
        node = undrain_node(node=node, now=clock.now())
        words = (
            f"{node.name} is back on sale."
            if node.suspended_at is None
            else f"{node.name} is not drained any more; it is on sale once an operator lifts its "
            "suspension."
        )
    messages.success(request, words)
    return _back_to(node)


@owner_page
@require_POST
def change_hours(request: PageRequest, node_id: str) -> HttpResponse:
    """Hours of sale and maintenance; empty fields sell the node all day."""
    now, node = clock.now(), get_own_node(request.organisation, node_id)
    form = SaleHoursForm(request.POST, now=now)
    if not form.is_valid():
        messages.error(request, "Write times as hours and minutes.")
        return _back_to(node)
    with show_refusal(request):
        change_sale_hours(node=node, change=form.cleaned_data, now=now)
        messages.success(
            request, f"{node.name} is sold in these hours. What was sold outside them is served."
        )
    return _back_to(node)


@owner_page
@require_POST
def reset_speed(request: PageRequest, node_id: str) -> HttpResponse:
    """Forget what a node's jobs were seen to do, as after a change of the machine."""
    node = reset_node_speed(node=get_own_node(request.organisation, node_id))
    messages.success(request, f"{node.name} is sold as fast as its self-test was, until it works.")
    return _back_to(node)


@owner_page
@require_POST
def take_node_away(request: PageRequest, node_id: str) -> HttpResponse:
    node = ask_node_to_leave(node=get_own_node(request.organisation, node_id), now=clock.now())
    has_left = node.status == NodeStatus.LEFT
    words = "has left." if has_left else "leaves as soon as what was sold of it is served."
    messages.success(request, f"{node.name} {words}")
    return redirect("node_list") if has_left else _back_to(node)


@owner_page
@require_POST
def end_node_token(request: PageRequest, node_id: str) -> HttpResponse:
    node = revoke_node_token(node=get_own_node(request.organisation, node_id), now=clock.now())
    messages.success(
        request,
        f"The credentials of {node.name} are revoked. Its jobs go on elsewhere; to bring it back, "
        "add a node under the same name.",
    )
    return _back_to(node)


@owner_page
@require_POST
def end_join_token(request: PageRequest, token_id: str) -> HttpResponse:
    token = get_own_join_token(request.organisation, token_id)
    revoke_join_token(token=token, now=clock.now())
    messages.success(request, "The join command is revoked; it lists no node.")
    return redirect("node_list")


def _back_to(node: Node) -> HttpResponse:
    return redirect("node_detail", node_id=node.pk)
