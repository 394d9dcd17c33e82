"""The rolling reserve: of a new payee's earnings a part stays for some weeks."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Min, Sum
from django.db.models.functions import Coalesce

from marketplace.accounts.selectors import is_run_by_operator
from marketplace.payments.models import Earning


def compute_reserve(*, organisation_id: str, now: datetime) -> int:
    """Micro-dollars that stay payable for now.

    It is a share of what was earned within ``PAYOUT_RESERVE_DAYS`` after the organisation's first
    earning, and of each earning for as many days. The market's own organisations have none.
    """
    lasts = timedelta(days=settings.PAYOUT_RESERVE_DAYS)
    earned = Earning.objects.filter(organisation=organisation_id, returned_at=None)
    first = earned.aggregate(first=Min("accrued_at"))["first"]
    if first is None or now >= first + 2 * lasts:
        return 0
    if is_run_by_operator(organisation_id=organisation_id):
        return 0
    kept = earned.filter(
        accrued_at__lt=first + lasts, accrued_at__gt=now - lasts, matured_at__isnull=False
    )
    total = kept.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]
    return total * settings.PAYOUT_RESERVE_PERCENT // 100
