from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("auction", "0011_bid_preparation")]

    operations = [
        migrations.AddField(model_name="bid", name="start", field=models.JSONField(null=True)),
        migrations.AddField(
            model_name="bid", name="cold_price_micros", field=models.BigIntegerField(null=True)
        ),
    ]
