from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("warm", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="offer",
            name="bid_id",
            field=models.CharField(max_length=40, null=True, unique=True),
        ),
    ]
