from django.db import migrations

#: Of policies and choices that there are no more.
GONE = ("alpha", "beta", "money_scale", "steepness", "history_bids", "history_days")


def drop_retired_settings(apps, schema_editor):
    """Every zone sells under one policy now; settings of another would be refused."""
    for zone in apps.get_model("fleet", "Zone").objects.exclude(settings={}):
        zone.settings = {name: zone.settings[name] for name in zone.settings if name not in GONE}
        zone.save(update_fields=["settings"])


class Migration(migrations.Migration):

    dependencies = [
        ("fleet", "0007_suspensions"),
    ]

    operations = [
        migrations.RunPython(drop_retired_settings, migrations.RunPython.noop),
        migrations.RemoveConstraint(model_name="zone", name="fleet_zone_policy_is_live"),
        migrations.RemoveField(model_name="zone", name="policy"),
        migrations.RemoveField(model_name="zone", name="policy_set_at"),
        migrations.RemoveField(model_name="zone", name="policy_set_by"),
    ]
