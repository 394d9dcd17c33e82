from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0017_shared_devices")]

    operations = [
        migrations.AddField("node", "rented_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddIndex(
            "node",
            models.Index(
                condition=models.Q(rented_at__isnull=False),
                fields=["rented_at"],
                name="fleet_node_rented",
            ),
        ),
    ]
