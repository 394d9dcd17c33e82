from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tiers', '0006_direct_starts'),
    ]

    operations = [
        migrations.AddField(
            model_name='zonetiers',
            name='starts_directly',
            field=models.BooleanField(default=True),
        ),
    ]
