"""A join token may list every GPU of a machine, and shows how far the machine is."""

import django.db.models.deletion
from django.db import migrations, models


def copy_uses(apps, schema_editor):
    use = apps.get_model("fleet", "JoinUse")
    tokens = apps.get_model("fleet", "JoinToken").objects.exclude(used_at=None)
    for token in tokens:
        use.objects.create(token=token, node_id=token.node_id, used_by_hash=token.used_by_hash)
    tokens.update(uses_left=0)


class Migration(migrations.Migration):
    dependencies = [("fleet", "0012_memory_for_jobs")]

    operations = [
        migrations.AddField(
            "jointoken", "uses_left", models.PositiveSmallIntegerField(default=1)
        ),
        migrations.AddField("jointoken", "progress", models.JSONField(default=dict)),
        migrations.CreateModel(
            name="JoinUse",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("used_by_hash", models.CharField(max_length=64)),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="fleet.node",
                    ),
                ),
                (
                    "token",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="uses",
                        to="fleet.jointoken",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("token", "used_by_hash"), name="fleet_join_use_once"
                    )
                ],
            },
        ),
        migrations.RunPython(copy_uses, migrations.RunPython.noop),
    ]
