"""The outbox: messages that a transaction wants sent once it is committed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Q

from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.ids import new_id
from marketplace.webhooks.models import WebhookEndpoint, WebhookMessage

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
BID_REFUSED = "bid.refused"
#: Of earnings on their way to a provider's or vendor's bank: ``returned`` are payable again.
PAYOUT_KINDS = ("started", "paid", "failed", "returned")
#: Everything that an endpoint can ask for.
EVENT_TYPES = (
    *(f"job.{kind}" for kind in JOB_KINDS),
    *OPENAI_TYPES.values(),
    BID_REFUSED,
    *(f"payout.{kind}" for kind in PAYOUT_KINDS),
)


class News(NamedTuple):
    """Something that happened to an organisation."""

    organisation_id: str
    #: One of ``EVENT_TYPES``, by our name.
    kind: str
    #: With the ``id`` of what it happened to.
    data: Mapping[str, Any]


def add_messages(*, news: Sequence[News], now: datetime) -> None:
    """Store a message for each endpoint that asked for it. Call in the transaction of the event."""
    if not news:
        return
    wanted = Q(events__overlap=sorted({name for each in news for name in _name(each.kind)}))
    endpoints = WebhookEndpoint.objects.filter(
        wanted,
        disabled_at=None,
        organisation_id__in={each.organisation_id for each in news},
    )
    by_owner: defaultdict[str, list[WebhookEndpoint]] = defaultdict(list)
    for endpoint in endpoints:
        by_owner[endpoint.organisation_id].append(endpoint)
    messages = [
        build_message(endpoint, kind=name, data=each.data, now=now)
        for each in news
        for endpoint in by_owner[each.organisation_id]
        for name in _name(each.kind)
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


def build_delivery(message: WebhookMessage) -> NewWork:
    """The durable work of sending a message."""
    owner = message.endpoint.organisation_id
    return NewWork(DELIVER, message.pk, due_at=message.due_at, owner=owner)


def _name(kind: str) -> list[str]:
    """A type of ours, and OpenAI's name for it if it has one."""
    return [name for name in (kind, OPENAI_TYPES.get(kind)) if name is not None]


def build_message(
    endpoint: WebhookEndpoint, *, kind: str, data: Mapping[str, Any], now: datetime
) -> WebhookMessage:
    """A message of the form that OpenAI's clients read."""
    body = {
        "id": new_id("evt"),
        "object": "event",
        "created_at": int(now.timestamp()),
        "type": kind,
        "data": data,
    }
    return WebhookMessage(
        endpoint=endpoint,
        type=kind,
        body=json.dumps(body, ensure_ascii=False),
        created_at=now,
        due_at=now,
    )
