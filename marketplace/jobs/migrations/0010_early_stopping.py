from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0009_awaits_data")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="stopped_early",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="job",
            name="best_step",
            field=models.PositiveIntegerField(null=True),
        ),
    ]
