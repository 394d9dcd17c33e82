from django.db import migrations, models


def note_drained(apps, schema_editor):
    """Nodes that drain now were drained by their providers."""
    nodes = apps.get_model("fleet", "Node").objects
    nodes.filter(status="draining").update(drained_at=models.F("joined_at"))


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0005_provider_approval'),
    ]

    operations = [
        migrations.AddField(
            model_name='node',
            name='drained_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='node',
            name='leave_asked_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.RunPython(note_drained, migrations.RunPython.noop),
    ]
