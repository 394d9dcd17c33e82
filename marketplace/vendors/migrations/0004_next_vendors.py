"""What of a vendor's price the owner paid, and whose failure made the house pay the rest."""

from django.db import migrations, models
from django.db.models import F


def take_prices_as_sold(apps, schema_editor) -> None:
    preparations = apps.get_model("vendors", "Preparation").objects
    preparations.update(sold_micros=F("price_micros"))


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_earlier_secret"), ("vendors", "0003_paid_from")]

    operations = [
        migrations.AddField(
            model_name="preparation",
            name="sold_micros",
            field=models.PositiveBigIntegerField(db_default=0),
        ),
        migrations.AddField(
            model_name="preparation",
            name="replaced_for",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=models.deletion.PROTECT,
                related_name="+",
                to="accounts.organisation",
            ),
        ),
        migrations.AddField(
            model_name="preparation",
            name="replaced_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.RunPython(take_prices_as_sold, migrations.RunPython.noop),
    ]
