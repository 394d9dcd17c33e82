from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0010_early_stopping'),
    ]

    operations = [
        migrations.RemoveIndex(model_name='nodeplan', name='jobs_plan_unsent'),
        migrations.RenameField(model_name='nodeplan', old_name='sent_at', new_name='taken_at'),
    ]
