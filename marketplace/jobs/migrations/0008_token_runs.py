"""Data sets are counted by stretches of tokens; those of before are counted again when needed."""

from __future__ import annotations

from django.db import migrations, models


def forget_counts(apps, schema_editor):
    apps.get_model("jobs", "DatasetTokens").objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [("jobs", "0007_candidate_prompts")]

    operations = [
        migrations.RunPython(forget_counts, migrations.RunPython.noop),
        migrations.AddField("datasettokens", "runs", models.BinaryField(default=b"")),
        migrations.AlterField("datasettokens", "runs", models.BinaryField()),
        migrations.AddField("slice", "speed_step", models.PositiveIntegerField(null=True)),
        migrations.AddField("slice", "units_per_s", models.FloatField(null=True)),
    ]
