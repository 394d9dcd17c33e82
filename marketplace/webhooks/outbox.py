"""The outbox: messages that a transaction wants sent once it is committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q

from marketplace.common.ids import new_id
from marketplace.common.queue import enqueue
from marketplace.webhooks.models import WebhookEndpoint, WebhookMessage

DELIVER = "webhooks.deliver"

#: What happens to a job after it was opened, as ``marketplace.jobs`` names it; a type is ``job.``
#: and one of these.
JOB_KINDS = (
    *("prepared", "disputed", "started", "paused", "moving", "node_lost", "fault"),
    *("checkpointed", "replan_wanted", "replanned", "adapter_stored", "succeeded", "failed"),
    *("cancelled", "settled", "refunded"),
)
#: Events that OpenAI's clients know by name, and what they are of ours.
OPENAI_TYPES = {
    f"job.{kind}": f"fine_tuning.job.{kind}" for kind in ("succeeded", "failed", "cancelled")
}
TEST_TYPE = "webhook.test"
#: Everything that an endpoint can ask for.
EVENT_TYPES = (*(f"job.{kind}" for kind in JOB_KINDS), *OPENAI_TYPES.values())


def add_messages(
    *, organisation_id: str, kind: str, data: Mapping[str, Any], now: datetime
) -> None:
    """Store a message for each endpoint that asked for it. Call in the transaction of the event."""
    names = [name for name in (kind, OPENAI_TYPES.get(kind)) if name is not None]
    wanted = Q(events__overlap=names, disabled_at=None)
    endpoints = WebhookEndpoint.objects.filter(wanted, organisation_id=organisation_id)
    messages = [
        build_message(endpoint, kind=name, data=data, now=now)
        for endpoint in endpoints
        for name in names
        if name in endpoint.events
    ]
    if messages:
        WebhookMessage.objects.bulk_create(messages)
        enqueue(DELIVER)


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
