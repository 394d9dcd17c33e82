import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


def note_suspended(apps, schema_editor):
    """Nodes that are suspended now failed jobs in a row; when is not known."""
    nodes = apps.get_model("fleet", "Node").objects
    nodes.filter(status="suspended").update(suspended_at=models.F("joined_at"))


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0006_drained_nodes'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='jointoken',
            name='revoked_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='node',
            name='suspended_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='node',
            name='suspended_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='provider',
            name='suspended_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='provider',
            name='suspended_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.RunPython(note_suspended, migrations.RunPython.noop),
    ]
