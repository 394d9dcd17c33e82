"""What a zone's first node settles for those after it: the base model's files, and work's costs."""

from __future__ import annotations

from collections.abc import Sequence

from marketplace.common.errors import Conflict
from marketplace.fleet import locks, selectors
from marketplace.fleet.models import Zone
from marketplace.fleet.self_test import select_work_measurements
from marketplace.fleet.work_costs import fit_work_costs
from workers.protocol.job_spec import WorkCosts
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement
from workers.protocol.wire import to_json


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
    """The zone's costs of work, set for good by its first node."""
    measured = select_work_measurements(zone, facts)
    if not zone.work_costs:
        locked = locks.lock_zone(zone.pk)
        if not locked.work_costs:
            locked.work_costs = to_json(fit_work_costs(selectors.get_work_costs(locked), measured))
            locked.save(update_fields=["work_costs"])
        zone.work_costs = locked.work_costs
    return selectors.get_work_costs(zone)
