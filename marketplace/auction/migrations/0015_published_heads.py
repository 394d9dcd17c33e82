import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('auction', '0014_bundles'),
    ]

    operations = [
        migrations.AlterModelTable(name='signedhead', table='auction_signedhead'),
        migrations.RenameModel(old_name='SignedHead', new_name='PublishedHead'),
        pgtrigger.migrations.RemoveTrigger(
            model_name='publishedhead',
            name='append_only',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='publishedhead',
            trigger=pgtrigger.compiler.Trigger(name='append_only', sql=pgtrigger.compiler.UpsertTriggerSql(func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;", hash='996f52f8f04a7d8ccd67e7e411f0bcc10cff2588', operation='UPDATE OR DELETE', pgid='pgtrigger_append_only_8264c', table='auction_signedhead', when='BEFORE')),
        ),
    ]
