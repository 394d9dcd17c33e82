"""What this app keeps of an organisation: its addresses, their secrets, and messages to them."""

from __future__ import annotations

from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.webhooks.models import WebhookEndpoint


def _erase(organisation_id: str, *, now: datetime) -> None:
    WebhookEndpoint.objects.filter(organisation=organisation_id).delete()


register_kept_data(KeptData(Subject.ORGANISATION, erase=_erase))
