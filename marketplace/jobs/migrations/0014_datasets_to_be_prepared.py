"""Files that nothing can train on as they are: a vendor repairs them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_blamed_nodes")]

    operations = [
        migrations.AddField(
            model_name="dataset",
            name="needs_preparation",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="dataset",
            name="repaired_tokens",
            field=models.PositiveBigIntegerField(db_default=0, default=0),
        ),
    ]
