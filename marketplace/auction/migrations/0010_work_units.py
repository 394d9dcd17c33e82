"""Pay is by work units; what was paid by steps keeps its proportions."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import F


def copy_steps(apps, schema_editor):
    apps.get_model("auction", "WorkShare").objects.update(units=F("steps"))


class Migration(migrations.Migration):
    dependencies = [("auction", "0009_witnessed_heads")]

    operations = [
        migrations.AddField("workshare", "units", models.PositiveBigIntegerField(default=0)),
        migrations.RunPython(copy_steps, migrations.RunPython.noop),
        migrations.AlterField("workshare", "units", models.PositiveBigIntegerField()),
    ]
