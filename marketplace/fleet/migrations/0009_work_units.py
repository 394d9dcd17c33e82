"""Nodes have their own speeds, in work units; the speed table goes."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import F, Q

#: ``workers.protocol.work.PARTS``.
PARTS = 1 << 20


def keep_units(apps, schema_editor):
    """A zone of before counted rows of its reference length: such a row stays its unit."""
    for zone in apps.get_model("fleet", "Zone").objects.all():
        zone.work_costs = {"token": max(1, PARTS // zone.reference_sequence_length)}
        zone.save(update_fields=["work_costs"])
    for node in apps.get_model("fleet", "Node").objects.select_related("zone"):
        node.self_test_speed = node.compute_capacity / node.zone.slot_s
        node.save(update_fields=["self_test_speed"])


class Migration(migrations.Migration):
    dependencies = [("fleet", "0008_one_price_policy")]

    operations = [
        migrations.AddField("zone", "work_costs", models.JSONField(blank=True, default=dict)),
        migrations.AddField("node", "self_test_speed", models.FloatField(default=1.0)),
        migrations.AddField("node", "measured_speeds", models.JSONField(blank=True, default=list)),
        migrations.RunPython(keep_units, migrations.RunPython.noop),
        migrations.RemoveConstraint("zone", "fleet_zone_reference_within_model"),
        migrations.RemoveField("zone", "reference_batch_size"),
        migrations.AddConstraint(
            "zone",
            models.CheckConstraint(
                condition=Q(reference_sequence_length__gt=0)
                & Q(reference_sequence_length__lte=F("max_sequence_length")),
                name="fleet_zone_reference_within_model",
            ),
        ),
        migrations.RemoveConstraint("node", "fleet_node_measures_positive"),
        migrations.AddConstraint(
            "node",
            models.CheckConstraint(
                condition=Q(
                    compute_capacity__gt=0, self_test_speed__gt=0, memory_gb__gt=0, ask_micros__gte=0
                ),
                name="fleet_node_measures_positive",
            ),
        ),
        migrations.DeleteModel("Speed"),
    ]
