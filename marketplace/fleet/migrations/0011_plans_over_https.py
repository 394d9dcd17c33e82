from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0010_base_hash'),
    ]

    operations = [
        migrations.RemoveField(model_name='node', name='broker_password_hash'),
        migrations.RemoveField(model_name='node', name='queue'),
        migrations.AddField(
            model_name='node',
            name='api_token_set_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='node',
            name='old_api_token_hash',
            field=models.CharField(blank=True, db_index=True, default='', max_length=64),
        ),
        migrations.AddField(
            model_name='node',
            name='old_api_token_until_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='node',
            name='plan_session',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
    ]
