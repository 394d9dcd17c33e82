"""The public page: prices, decisions, and how the auction works."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Avg, F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from marketplace.auction.bidding.typical import SHARES as TYPICAL_SHARES
from marketplace.auction.bidding.typical import typical_quotes
from marketplace.auction.models import Bid
from marketplace.auction.selectors import MarketNow, load_market
from marketplace.common import clock
from marketplace.common.errors import SystemFault
from marketplace.fleet.models import Node, NodeStatus, Tier, Zone
from marketplace.fleet.selectors import get_open_zone, list_open_zones
from marketplace.jobs.models import Job, JobStatus
from marketplace.web.presenters.heat import Heat, HeatNode, build_heat

DECISIONS_LISTED = 8
#: Nodes in the heat map; the API has all of them.
ROWS_SHOWN = 24

#: From the tier that starts soonest, as the key under the map.
_TIERS = tuple(Tier.values)


@never_cache
@require_GET
def market(request: HttpRequest, zone_name: str | None = None) -> HttpResponse:
    now = clock.now()
    zones = list(list_open_zones())
    zone = get_open_zone(zone_name) if zone_name else next(iter(zones), None)
    context: dict[str, Any] = {"zones": zones, "zone": zone, "now": now}
    if zone is not None:
        try:
            book = load_market(zone, now=now)
        except SystemFault:
            # Prices are away; the rest of the page is not.
            context["closed"] = True
        else:
            context |= {
                "book": book,
                "heat": build_market_heat(book, now=now, rows_max=ROWS_SHOWN),
                "typical": typical_quotes(zone=zone, now=now),
                "columns": [zone.slot_s * zone.horizon_slots * share for share in TYPICAL_SHARES],
                "decisions": book.decisions[:DECISIONS_LISTED],
            }
        context["figures"] = count_market_figures(zone)
    return render(request, "web/market.html", context)


def build_market_heat(book: MarketNow, *, now: datetime, rows_max: int) -> Heat:
    """By tier, then by ask; of many nodes only ``rows_max`` are drawn."""
    facts = {
        node.pk: HeatNode(node.name, node.gpu_type_id, node.tier, node.compute_capacity)
        for node in Node.objects.filter(zone=book.zone)
    }
    rows = sorted(
        (row for row in book.rows if row.node_id in facts),
        key=lambda row: (_TIERS.index(facts[row.node_id].tier), row.ask_micros, row.name),
    )[:rows_max]
    return build_heat(
        rows=rows,
        facts=facts,
        first_slot_at=book.first_slot_at,
        slot_s=book.zone.slot_s,
        now=now,
    )


def count_market_figures(zone: Zone) -> dict[str, Any]:
    """What the page says of the past: how many decisions, how fast, how punctual."""
    decided = Bid.objects.filter(zone=zone, position__isnull=False)
    speed = decided.aggregate(mean=Avg(F("decided_at") - F("created_at")))["mean"]
    nodes = Node.objects.filter(zone=zone).exclude(status=NodeStatus.LEFT)
    ended = Job.objects.filter(zone=zone, status=JobStatus.SUCCEEDED)
    in_time = ended.filter(finished_at__lte=F("deadline_at")).count()
    return {
        "decided": decided.count(),
        "decide_s": speed.total_seconds() if speed is not None else None,
        "ended": ended.count(),
        "in_time_share": in_time / ended.count() if ended.count() else None,
        "nodes_online": nodes.filter(status=NodeStatus.ONLINE).count(),
        "nodes": nodes.count(),
    }
