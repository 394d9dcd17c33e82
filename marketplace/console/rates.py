"""What a provider's nodes are paid where rates are posted."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.auction.node_rates import load_node_rates
from marketplace.common import clock
from marketplace.common.errors import MarketFault
from marketplace.fleet.selectors import list_present_nodes
from marketplace.web.views.requests import PageRequest, page


@page
@require_GET
def show_rates(request: PageRequest) -> HttpResponse:
    """Each node's rates by block, and why it sells or not."""
    now = clock.now()
    nodes = list_present_nodes(request.organisation)
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
    return render(request, "console/rates.html", {"zones": zones, "has_nodes": bool(nodes)})
