"""The units that a zone's work is counted in, which another node may settle before any bid."""

from __future__ import annotations

from marketplace.auction.models import Bid
from marketplace.common.errors import Conflict, NotFound
from marketplace.fleet.first_node import measure_costs_again
from marketplace.fleet.models import Node, Zone
from workers.protocol.job_spec import WorkCosts


def remeasure_zone(*, zone_name: str, node_id: str) -> WorkCosts:
    """Take a zone's costs of work from another node's self-test.

    Raises
    ------
    NotFound
        ``unknown_zone`` or ``unknown_node``.
    Conflict
        ``zone_has_bids``: prices and work are in its units by now; or ``not_measured``.
    """
    zone = Zone.objects.filter(name=zone_name).first()
    node = Node.objects.filter(pk=node_id).first()
    if zone is None:
        raise NotFound("unknown_zone", f"There is no zone {zone_name!r}.")
    if node is None:
        raise NotFound("unknown_node", f"There is no node {node_id!r}.")
    if Bid.objects.filter(zone=zone).exists():
        raise Conflict(
            "zone_has_bids",
            f"Bids were placed in {zone_name}, so its units stay. Open another zone in its place.",
        )
    return measure_costs_again(zone=zone, node=node)
