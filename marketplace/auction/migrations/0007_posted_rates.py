from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("auction", "0006_plan_revisions"),
    ]

    operations = [
        migrations.AddField(
            model_name="reservation",
            name="posted_rate_micros",
            field=models.FloatField(null=True),
        ),
    ]
