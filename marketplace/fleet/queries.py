"""The fleet's own SQL: what is asked so often that composing a query costs more than its answer."""

from __future__ import annotations

from marketplace.common.db.rows import read_rows


def read_fleet_digest(*, zone_id: str) -> str | None:
    """One text that is equal as long as nothing changes of the nodes the engine goes by."""
    [(digest,)] = read_rows(_FLEET_DIGEST, [zone_id])
    return digest


#: The rows themselves, many times a second, would cost more than the decisions do.
_FLEET_DIGEST = """
SELECT md5(string_agg(
    (node.id, status, gpu_type_id, compute_capacity, memory_gb, ask_micros, available_from_at,
     available_until_at, boot_s, provider.verified_at IS NULL)::text, ';' ORDER BY node.id))
FROM fleet_node AS node JOIN fleet_provider AS provider ON provider.id = node.provider_id
WHERE zone_id = %s
"""
