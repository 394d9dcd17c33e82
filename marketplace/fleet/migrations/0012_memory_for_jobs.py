"""Nodes that are listed are sold without their pack's memory, as those that join from now on."""

from __future__ import annotations

from django.db import migrations


def recount_memory(apps, schema_editor):
    """By the self-test each node joined with, as ``fleet.self_test.memory_for_sale`` counts.

    A node without room for a job is left a kilobyte: what is sold of it stays, and it sells no more.
    """
    # Only here: later versions of the market may lack it, and have no nodes of before.
    from marketplace.fleet.memory import size_for_jobs

    for node in apps.get_model("fleet", "Node").objects.select_related("zone").exclude(facts={}):
        zone, facts = node.zone, node.facts
        bases = [row.get("base_memory_gb", 0.0) for row in facts.get("speeds", ())]
        jobs_gb = size_for_jobs(
            zone,
            device=facts.get("device", "cpu"),
            limit_gb=facts["memory_gb"],
            base_gb=max(zone.base_memory_gb, *bases),
        )
        node.memory_gb = zone.base_memory_gb + (jobs_gb or 1e-6)
        node.save(update_fields=["memory_gb"])


class Migration(migrations.Migration):
    dependencies = [("fleet", "0011_plans_over_https")]

    operations = [migrations.RunPython(recount_memory, migrations.RunPython.noop)]
