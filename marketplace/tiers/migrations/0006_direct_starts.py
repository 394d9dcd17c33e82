import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tiers', '0005_renewals'),
    ]

    operations = [
        migrations.AlterField(
            model_name='booking',
            name='origin',
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name='+',
                to='tiers.machine',
            ),
        ),
    ]
