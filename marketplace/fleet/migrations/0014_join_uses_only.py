"""Apart from the copying: a table with pending changes cannot lose a column."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("fleet", "0013_join_uses")]

    operations = [migrations.RemoveField("jointoken", "used_by_hash")]
