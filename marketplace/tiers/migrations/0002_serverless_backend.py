from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tiers", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="zonetiers",
            name="serverless_backend",
            field=models.CharField(default="local", max_length=32),
        ),
    ]
