import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_audit"), ("warm", "0002_offer_bid")]

    operations = [
        migrations.CreateModel(
            name="Overrun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("amount_micros", models.BigIntegerField()),
                ("made_at", models.DateTimeField()),
                (
                    "offer",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="warm.offer",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organisation",
                    ),
                ),
                (
                    "provider",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organisation",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["owner", "-made_at"], name="warm_overrun_of_owner"),
                    models.Index(fields=["provider", "-made_at"], name="warm_overrun_of_provider"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("offer", "provider"), name="warm_overrun_once"
                    ),
                ],
            },
        ),
    ]
