"""What a zone's first node settles for those after it: the base model's files, and work's costs."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from marketplace.common.errors import Conflict
from marketplace.fleet import locks, selectors
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.fleet.self_test import (
    find_self_test_speed,
    read_measured_speeds,
    select_work_measurements,
)
from marketplace.fleet.work_costs import fit_work_costs
from workers.protocol.job_spec import WorkCosts
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement
from workers.protocol.wire import from_json, to_json


def pin_base_model(zone: Zone, measured: Sequence[SpeedMeasurement]) -> None:
    """The zone's base model is what its first node has, to the last bit.

    Raises
    ------
    Conflict
        ``other_base_model``: this node has another one, so that no job could move to it.
    """
    found = measured[0].base_sha256
    if not found:
        return
    if not zone.base_model_sha256:
        locked = locks.lock_zone(zone.pk)
        if not locked.base_model_sha256:
            locked.base_model_sha256 = found
            locked.save(update_fields=["base_model_sha256"])
        zone.base_model_sha256 = locked.base_model_sha256
    if found != zone.base_model_sha256:
        raise Conflict(
            "other_base_model",
            f"This machine's {zone.base_model_name} has other files than the zone's nodes have. "
            "Download it again, in the revision that the zone names.",
        )


def ensure_work_costs(zone: Zone, facts: NodeFacts) -> WorkCosts:
    """The zone's costs of work, set by its first node; see ``measure_costs_again``."""
    measured = select_work_measurements(zone, facts)
    if not zone.work_costs:
        locked = locks.lock_zone(zone.pk)
        if not locked.work_costs:
            locked.work_costs = to_json(fit_work_costs(selectors.get_work_costs(locked), measured))
            locked.save(update_fields=["work_costs"])
        zone.work_costs = locked.work_costs
    return selectors.get_work_costs(zone)


def measure_costs_again(*, zone: Zone, node: Node) -> WorkCosts:
    """Have another node's self-test settle the costs of work, and count all nodes by them.

    Call where nothing was sold in the zone: prices, work and capacities are in its units.

    Raises
    ------
    Conflict
        ``not_measured``: the node is not of the zone, or its self-test timed no work.
    """
    facts = from_json(NodeFacts, node.facts) if node.facts else None
    if node.zone_id != zone.pk or facts is None or not select_work_measurements(zone, facts):
        raise Conflict("not_measured", f"{node.name} has no timed work for zone {zone.name}.")
    with transaction.atomic():
        zone = locks.lock_zone(zone.pk)
        zone.work_costs = {}
        costs = fit_work_costs(
            selectors.get_work_costs(zone), select_work_measurements(zone, facts)
        )
        zone.work_costs = to_json(costs)
        zone.save(update_fields=["work_costs"])
        present = Node.objects.filter(zone=zone).exclude(status=NodeStatus.LEFT)
        for each in locks.lock_nodes(present.values_list("pk", flat=True)):
            speed = find_self_test_speed(zone, read_measured_speeds(each), costs)
            each.self_test_speed, each.measured_speeds = speed, []
            each.compute_capacity = speed * zone.slot_s
            each.save(update_fields=["self_test_speed", "measured_speeds", "compute_capacity"])
    return costs
