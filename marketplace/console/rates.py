"""What a provider's nodes are paid where rates are posted."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.auction.node_rates import load_node_rates
from marketplace.common import clock
from marketplace.common.errors import MarketFault
from marketplace.console.queries_in_address import read_text
from marketplace.fleet.selectors import list_node_page
from marketplace.web.views.requests import PageRequest, page

NODES_PER_PAGE = 20


@page
@require_GET
def show_rates(request: PageRequest) -> HttpResponse:
    """Each node's rates by block, and why it sells or not."""
    now = clock.now()
    after = read_text(request, "after")
    nodes, following = list_node_page(request.organisation, after=after, limit=NODES_PER_PAGE)
    zones = []
    for zone in sorted({node.zone for node in nodes}, key=lambda zone: zone.name):
        try:
            rates = load_node_rates(
                zone=zone, nodes=[node for node in nodes if node.zone_id == zone.pk], now=now
            )
        except MarketFault:
            # A zone whose log is broken has no rates to show.
            continue
        if rates:
            zones.append((zone, rates))
    context = {"zones": zones, "has_nodes": bool(nodes), "after": after, "following": following}
    return render(request, "console/rates.html", context)
