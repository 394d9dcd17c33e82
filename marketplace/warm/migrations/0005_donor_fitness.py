from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("warm", "0004_offer_risk")]

    operations = [
        migrations.AddField(
            model_name="donor",
            name="builds_on_others",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="donor",
            name="did_harm",
            field=models.BooleanField(default=False),
        ),
    ]
