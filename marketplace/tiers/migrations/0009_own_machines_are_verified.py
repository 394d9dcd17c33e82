from django.db import migrations
from django.db.models import F


def verify_own_providers(apps, _editor):
    """The machines that the market rents are its own: it vouches for who lists them."""
    tiers = apps.get_model("tiers", "ZoneTiers")
    providers = apps.get_model("fleet", "Provider").objects.filter(
        pk__in=tiers.objects.values("provider_id"), verified_at=None
    )
    providers.update(verified_at=F("approved_at"))


class Migration(migrations.Migration):
    dependencies = [("tiers", "0008_listed_offers"), ("fleet", "0016_offered_nodes")]

    operations = [migrations.RunPython(verify_own_providers, migrations.RunPython.noop)]
