"""The only row locks of this app. Exports are locked before wallets."""

from __future__ import annotations

from marketplace.exports.models import Export


def lock_export(**wanted: object) -> Export | None:
    found = Export.objects.select_for_update(of=("self",)).filter(**wanted)
    return found.select_related("zone", "job__artifact", "node__provider").first()
