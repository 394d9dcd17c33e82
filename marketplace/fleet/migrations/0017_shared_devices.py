import django.db.models.deletion
from django.db import migrations, models

#: Hours of two nodes of a device that overlap are refused by the database too. A device's day is
#: a stretch of 86,400 numbers of its own, so one range operator compares device and hours; an end
#: before the beginning is on the next day.
HOURS_APART = """
ALTER TABLE fleet_node ADD CONSTRAINT fleet_node_hours_apart EXCLUDE USING gist ((
    CASE WHEN sale_opens < sale_closes THEN int8multirange(int8range(
        shared_device_id * 86400 + extract(epoch FROM sale_opens)::bigint,
        shared_device_id * 86400 + extract(epoch FROM sale_closes)::bigint))
    ELSE int8multirange(
        int8range(shared_device_id * 86400,
                  shared_device_id * 86400 + extract(epoch FROM sale_closes)::bigint),
        int8range(shared_device_id * 86400 + extract(epoch FROM sale_opens)::bigint,
                  shared_device_id * 86400 + 86400))
    END
) WITH &&)
WHERE (shared_device_id IS NOT NULL AND sale_opens IS NOT NULL AND status <> 'left')
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0016_offered_nodes")]

    operations = [
        migrations.AddField("jointoken", "sale_opens", models.TimeField(blank=True, null=True)),
        migrations.AddField("jointoken", "sale_closes", models.TimeField(blank=True, null=True)),
        migrations.AddField("node", "load_s", models.FloatField(default=0.0)),
        migrations.AlterField(
            "node",
            "status",
            models.CharField(
                choices=[
                    ("offered", "Offered"),
                    ("joining", "Joining"),
                    ("online", "Online"),
                    ("resting", "Resting"),
                    ("offline", "Offline"),
                    ("draining", "Draining"),
                    ("stopping", "Stopping"),
                    ("suspended", "Suspended"),
                    ("left", "Left"),
                ],
                default="joining",
                max_length=12,
            ),
        ),
        migrations.CreateModel(
            "SharedDevice",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("created_at", models.DateTimeField()),
                (
                    "provider",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="fleet.provider",
                    ),
                ),
            ],
        ),
        migrations.AddField(
            "node",
            "shared_device",
            models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="nodes",
                to="fleet.shareddevice",
            ),
        ),
        migrations.AddConstraint(
            "node",
            models.CheckConstraint(
                condition=models.Q(shared_device__isnull=True)
                | models.Q(sale_opens__isnull=False)
                | models.Q(status="left"),
                name="fleet_node_shares_in_hours",
            ),
        ),
        migrations.RunSQL(
            HOURS_APART, "ALTER TABLE fleet_node DROP CONSTRAINT fleet_node_hours_apart"
        ),
    ]
