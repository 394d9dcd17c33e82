"""The outbox: messages that a transaction wants sent once it is committed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q

from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.ids import new_id
from marketplace.webhooks.models import MessageForm, Notice, WebhookEndpoint, WebhookMessage
from marketplace.webhooks.news import (
    BID_REFUSED,
    CAP_NEAR,
    JOB_LATE,
    NODE_SILENT,
    News,
    is_late,
    write_chat_body,
    write_words,
)
from marketplace.webhooks.notices import add_notices

#: The kind of work that sending a message is.
DELIVER = "webhooks.deliver"

#: What happens to a job, as ``marketplace.jobs`` names it; a type is ``job.``
#: and one of these.
JOB_KINDS = (
    *("opened", "prepared", "disputed", "started", "paused", "moving", "node_lost", "fault"),
    *("checkpointed", "replan_wanted", "replanned", "start_dropped", "adapter_stored"),
    *("succeeded", "failed", "cancelled", "owner_paused", "settled", "refunded"),
)
#: Events that OpenAI's clients know by name, and what they are of ours.
OPENAI_TYPES = {
    f"job.{kind}": f"fine_tuning.job.{kind}" for kind in ("succeeded", "failed", "cancelled")
}
TEST_TYPE = "webhook.test"
#: Of earnings on their way to a provider's or vendor's bank: ``returned`` are payable again.
PAYOUT_KINDS = ("started", "paid", "failed", "returned")
#: Everything that an endpoint can ask for.
EVENT_TYPES = (
    *(f"job.{kind}" for kind in JOB_KINDS),
    *OPENAI_TYPES.values(),
    BID_REFUSED,
    *(f"payout.{kind}" for kind in PAYOUT_KINDS),
    *(JOB_LATE, NODE_SILENT, CAP_NEAR),
)


def add_messages(*, news: Sequence[News], now: datetime) -> None:
    """Store a message for each endpoint that asked for it, and notices for those concerned.

    Call in the transaction of the event.
    """
    if not news:
        return
    add_notices(news=news, now=now)
    wanted = Q(events__overlap=sorted({name for each in news for name in _name(each)}))
    endpoints = WebhookEndpoint.objects.filter(
        wanted,
        disabled_at=None,
        organisation_id__in={each.organisation_id for each in news},
    )
    by_owner: defaultdict[str, list[WebhookEndpoint]] = defaultdict(list)
    for endpoint in endpoints:
        by_owner[endpoint.organisation_id].append(endpoint)
    messages = [
        build_message(
            endpoint, kind=name, data=each.data, now=now, body=_write_body(endpoint, each)
        )
        for each in news
        for endpoint in by_owner[each.organisation_id]
        for name in _name(each)
        if name in endpoint.events
    ]
    if messages:
        store_messages(*messages)


def store_messages(*messages: WebhookMessage) -> None:
    """Store messages and have them sent after the commit."""
    WebhookMessage.objects.bulk_create(messages)
    enqueue_work(*map(build_delivery, messages))


def forget_messages(*, organisation_id: str, about: str) -> None:
    """Delete what an organisation was told of a thing, by the thing's id, sent or not."""
    told = WebhookMessage.objects.filter(endpoint__organisation=organisation_id)
    told.filter(body__contains=about).delete()
    Notice.objects.filter(organisation=organisation_id, about=about).delete()


def build_delivery(message: WebhookMessage) -> NewWork:
    """The durable work of sending a message."""
    owner = message.endpoint.organisation_id
    return NewWork(DELIVER, message.pk, due_at=message.due_at, owner=owner)


def _name(news: News) -> list[str]:
    """Types of ours, and OpenAI's name if it has one."""
    late = JOB_LATE if is_late(news) else None
    names = (news.kind, OPENAI_TYPES.get(news.kind), late)
    return [name for name in names if name is not None]


def _write_body(endpoint: WebhookEndpoint, news: News) -> str | None:
    """What a chat room reads; ``None``: the endpoint is a program's."""
    form = MessageForm(endpoint.form)
    words = None if form is MessageForm.STANDARD else write_words(news)
    return None if words is None else write_chat_body(words, form)


def build_message(
    endpoint: WebhookEndpoint,
    *,
    kind: str,
    data: Mapping[str, Any],
    now: datetime,
    body: str | None = None,
) -> WebhookMessage:
    """A message of the form that OpenAI's clients read, or with a body of another form."""
    event = {
        "id": new_id("evt"),
        "object": "event",
        "created_at": int(now.timestamp()),
        "type": kind,
        "data": data,
    }
    return WebhookMessage(
        endpoint=endpoint,
        type=kind,
        body=json.dumps(event, ensure_ascii=False) if body is None else body,
        created_at=now,
        due_at=now,
    )
