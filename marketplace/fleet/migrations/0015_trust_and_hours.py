"""Providers that the operator knows, and hours in which nodes are sold."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0014_join_uses_only")]

    operations = [
        migrations.AddField(
            "provider", "verified_at", models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField("node", "sale_opens", models.TimeField(blank=True, null=True)),
        migrations.AddField("node", "sale_closes", models.TimeField(blank=True, null=True)),
        migrations.AddField(
            "node", "maintenance_from_at", models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            "node", "maintenance_until_at", models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            "node", "offered_until_at", models.DateTimeField(blank=True, null=True)
        ),
    ]
