"""Of the refund of a failed job, what a vendor kept all the same."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("payments", "0012_check_pay")]

    operations = [
        migrations.AddField(
            model_name="distribution",
            name="borne_vendor_micros",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
    ]
