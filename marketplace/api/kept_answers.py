"""How long answers to requests are kept; workers load this alone of the API, and no framework."""

from __future__ import annotations

from datetime import datetime, timedelta

from marketplace.api.models import IdempotencyRecord

KEPT_FOR = timedelta(hours=24)


def sweep_records(*, now: datetime) -> int:
    """Forget answers older than 24 hours."""
    return IdempotencyRecord.objects.filter(started_at__lt=now - KEPT_FOR).delete()[0]
