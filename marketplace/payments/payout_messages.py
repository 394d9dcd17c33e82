"""What webhooks of a provider or vendor say about its payouts."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.money import from_micros
from marketplace.payments.models import Payout
from marketplace.webhooks.news import News
from marketplace.webhooks.outbox import add_messages


def announce_payout(payout: Payout, kind: str, *, now: datetime) -> None:
    """Have webhooks say what became of a payout. Call in the transaction of it.

    ``kind`` is one of ``webhooks.outbox.PAYOUT_KINDS``.
    """
    data = {
        "id": payout.pk,
        "amount": f"{from_micros(payout.amount_micros):f}",
        "status": str(payout.status),
        "failure": payout.failure or None,
        "retry_at": None if payout.retry_at is None else payout.retry_at.isoformat(),
    }
    add_messages(news=[News(payout.organisation_id, f"payout.{kind}", data)], now=now)
