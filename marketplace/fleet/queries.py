"""The fleet's own SQL: what is asked so often that composing a query costs more than its answer."""

from __future__ import annotations

from collections.abc import Sequence

from marketplace.common.db.model_query import ModelQuery
from marketplace.common.db.pipeline import Statement, fetch
from marketplace.fleet.models import NodeStatus, Tier, Zone


def find_zones_by_name(names: Sequence[str]) -> list[Zone]:
    """Zones by name, closed ones too."""
    return _ZONES_BY_NAME.read(*fetch(_ZONES_BY_NAME.build_statement(list(names))))


_ZONES_BY_NAME = ModelQuery(Zone, "WHERE name = ANY(%s)")


def build_fleet_digest(*, zone_id: str) -> Statement:
    """One text that is equal as long as nothing changes of the nodes the engine goes by."""
    return Statement(_FLEET_DIGEST, (zone_id,))


#: The rows themselves, many times a second, would cost more than the decisions do.
_FLEET_DIGEST = """
SELECT md5(string_agg(
    (node.id, status, gpu_type_id, compute_capacity, memory_gb, ask_micros, available_from_at,
     available_until_at, boot_s, provider.verified_at IS NULL)::text, ';' ORDER BY node.id))
FROM fleet_node AS node JOIN fleet_provider AS provider ON provider.id = node.provider_id
WHERE zone_id = %s
"""


def build_serverful_count(*, zone_id: str) -> Statement:
    """How many nodes of a zone are on sale, serverless ones left out."""
    return Statement(_SERVERFUL_COUNT, (zone_id, NodeStatus.ONLINE.value, Tier.SERVERLESS.value))


_SERVERFUL_COUNT = (
    "SELECT count(*) FROM fleet_node WHERE zone_id = %s AND status = %s AND tier <> %s"
)
