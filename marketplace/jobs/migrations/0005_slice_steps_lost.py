from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0004_slice_steps'),
    ]

    operations = [
        migrations.AddField(
            model_name='slice',
            name='steps_lost',
            field=models.PositiveIntegerField(default=0),
        ),
    ]
