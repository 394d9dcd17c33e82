from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("warm", "0003_overrun")]

    operations = [
        migrations.AddField(
            model_name="offer",
            name="risk_micros",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddIndex(
            model_name="offer",
            index=models.Index(
                fields=["organisation"],
                condition=Q(bid_id__isnull=False, measured_at=None),
                name="warm_offer_running",
            ),
        ),
    ]
