"""From which charge a vendor was paid: a dispute about accepted work gives it back."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("vendors", "0002_people_and_outside")]

    operations = [
        migrations.AddField(
            model_name="preparation",
            name="paid_from",
            field=models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
    ]
