"""Every row lock of this app, ordered by primary key. Call inside a transaction."""

from __future__ import annotations

from marketplace.tiers.models import Machine, ZoneTiers


def lock_machine(machine_id: str) -> Machine:
    return (
        Machine.objects.select_for_update(of=("self",))
        .select_related("zone", "join_token")
        .get(pk=machine_id)
    )


def lock_zone_tiers(zone_id: str) -> ZoneTiers:
    return (
        ZoneTiers.objects.select_for_update(of=("self",))
        .select_related("zone", "provider")
        .get(pk=zone_id)
    )
