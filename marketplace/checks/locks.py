"""The only row locks of this app. Checks are locked before jobs, nodes and the ledger."""

from __future__ import annotations

from marketplace.checks.models import SpotCheck


def lock_check(**wanted: object) -> SpotCheck | None:
    found = SpotCheck.objects.select_for_update(of=("self",)).filter(**wanted)
    return found.select_related("zone", "job", "node__provider", "checker__provider").first()
