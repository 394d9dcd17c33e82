"""What this app keeps of organisations and people: addresses, their secrets, messages, notices."""

from __future__ import annotations

from datetime import datetime

from marketplace.accounts.erasure import KeptData, register_kept_data
from marketplace.accounts.models import Subject
from marketplace.webhooks.models import Notice, NoticeChoice, WebhookEndpoint


def _erase(organisation_id: str, *, now: datetime) -> None:
    WebhookEndpoint.objects.filter(organisation=organisation_id).delete()
    Notice.objects.filter(organisation=organisation_id).delete()
    NoticeChoice.objects.filter(organisation=organisation_id).delete()


def _erase_person(user_id: str, *, now: datetime) -> None:
    Notice.objects.filter(user=user_id).delete()
    NoticeChoice.objects.filter(user=user_id).delete()


register_kept_data(
    KeptData(Subject.ORGANISATION, erase=_erase), KeptData(Subject.PERSON, erase=_erase_person)
)
