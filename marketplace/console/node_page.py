"""One node's page: for its provider, who may change it, and for operators, who may end it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from marketplace.auction.node_cells import list_sold_runs
from marketplace.auction.node_work import list_node_work, sum_latest_work
from marketplace.auction.selectors import load_market
from marketplace.checks.reliability import (
    list_blemishes,
    list_reliability_days,
    measure_reliability,
)
from marketplace.common import clock
from marketplace.common.errors import MarketFault, NotFound
from marketplace.common.money import count_decimals
from marketplace.console.forms import build_hours_form
from marketplace.console.node_drawings import (
    build_gantt,
    build_price_line,
    build_speed_bars,
    build_strip,
    build_week,
)
from marketplace.fleet.device_timeslices import find_rest
from marketplace.fleet.models import Ask, Node, NodeStatus
from marketplace.fleet.selectors import find_ask_band, get_own_node
from marketplace.jobs.context_switch_stats import measure_switches
from marketplace.jobs.models import SliceStatus
from marketplace.jobs.selectors import list_node_slices
from marketplace.web.views.requests import PageRequest, operator_page, page

_HEARD = (NodeStatus.ONLINE, NodeStatus.DRAINING, NodeStatus.RESTING)
#: Of the latest jobs that it was paid for, and of the asks before the present one.
WORK_SHOWN, ASKS_SHOWN = 6, 5
#: Of its latest jobs, those whose pay is summed up.
WORK_SUMMED = 100


@page
@require_GET
def show_node(request: PageRequest, node_id: str) -> HttpResponse:
    """What one of the organisation's nodes does, sold, earned and can be relied on for."""
    node = get_own_node(request.organisation, node_id)
    return render(request, "console/node.html", _load_node_page(node, now=clock.now()))


@operator_page
@require_GET
def show_any_node(request: PageRequest, node_id: str) -> HttpResponse:
    """The same of anybody's node, with what an operator may do to it."""
    found = Node.objects.select_related(
        "zone", "provider__organisation", "suspended_by", "shared_device"
    ).filter(pk=node_id.replace("\0", ""))
    if (node := found.first()) is None:
        raise NotFound("unknown_node", "There is no such node.")
    context = _load_node_page(node, now=clock.now()) | {"is_operator": True}
    return render(request, "console/node.html", context)


def _load_node_page(node: Node, *, now: datetime) -> dict[str, Any]:
    zone, here = node.zone, timezone.get_current_timezone()
    half = timedelta(seconds=zone.slot_s * zone.horizon_slots / 2)
    past = list_node_slices(node, since=now - half)
    ahead = list_sold_runs(node=node, now=now)
    owner = node.provider.organisation
    works = list_node_work(organisation=owner, limit=WORK_SHOWN, node_id=node.pk)
    return {
        "node": node,
        "now": now,
        "is_heard": node.status in _HEARD,
        "jobs": sum(held.status == SliceStatus.OPEN for held in past),
        "gantt": build_gantt(zone=zone, past=past, ahead=ahead, now=now),
        "ahead": ahead,
        "sold_micros": sum(run.cost_micros for run in ahead),
        "week": build_week(node, now=now),
        "hours": build_hours_form(node, now=now),
        "rest": find_rest(node, now=now),
        "past": measure_reliability([node.pk], now=now)[node.pk],
        "strip": build_strip(list_reliability_days(node=node, now=now, zone=here)),
        "blemishes": list_blemishes(node=node, now=now),
        "speeds": build_speed_bars(node),
        "units_a_second": node.compute_capacity / zone.slot_s,
        "switches": measure_switches([node.pk]).get(node.pk),
        "band": find_ask_band(node),
        "asks": Ask.objects.filter(node=node).order_by("-set_at", "-pk")[: ASKS_SHOWN + 1],
        "paid": sum_latest_work(node=node, limit=WORK_SUMMED),
        "works": works,
        "decimals": count_decimals(work.share.paid_micros for work in works),
        **vars(_read_sale(node, now=now)),
    }


@dataclass(frozen=True)
class _Sale:
    """What the zone's log says of a node; without entries where it is not on sale."""

    price: Any = None
    sold_share: float | None = None


def _read_sale(node: Node, *, now: datetime) -> _Sale:
    """Prices and sold shares of the node's cells; nothing where the zone's log cannot be read."""
    try:
        book = load_market(node.zone, now=now)
    except MarketFault:
        return _Sale()
    row = next((row for row in book.rows if row.node_id == node.pk), None)
    if row is None:
        return _Sale()
    price = build_price_line(
        row=row,
        capacity=node.compute_capacity,
        first_slot_at=book.first_slot_at,
        slot_s=node.zone.slot_s,
        now=now,
    )
    return _Sale(price, sum(row.compute_sold) / max(1, len(row.compute_sold)))
