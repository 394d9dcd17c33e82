"""The only row locks of this app. Exports are locked before wallets."""

from __future__ import annotations

from datetime import datetime

from marketplace.exports.models import Export, HubPush, PushStatus


def lock_export(**wanted: object) -> Export | None:
    found = Export.objects.select_for_update(of=("self",)).filter(**wanted)
    return found.select_related("zone", "job__artifact", "node__provider").first()


def lock_due_push(*, now: datetime) -> HubPush | None:
    """The next push that is due and that no other worker has taken."""
    due = HubPush.objects.select_for_update(of=("self",), skip_locked=True)
    due = due.filter(status=PushStatus.WAITING, due_at__lte=now)
    return due.select_related("job__artifact", "export").order_by("due_at", "pk").first()
