"""Zones know the files of a bundled base model; those of before go unchecked."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0009_work_units")]

    operations = [
        migrations.AddField(
            "zone", "base_model_sha256", models.CharField(blank=True, default="", max_length=64)
        )
    ]
