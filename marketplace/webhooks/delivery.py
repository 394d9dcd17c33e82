"""Sending the outbox's messages: each is claimed, sent outside of any transaction, and noted.

A process may die at any point: the claim runs out, and the message is sent again under the same
id, by which its receiver knows it. Some are sent beside each other, so that a slow endpoint does
not hold up the others.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from cryptography.fernet import InvalidToken
from django.conf import settings
from django.db import transaction
from django.db.models import F, Window
from django.db.models.functions import RowNumber
from standardwebhooks import Webhook

from marketplace.common.encryption import decrypt_text
from marketplace.common.locks import advisory_session_lock
from marketplace.common.outbound import AnswerLimits, FetchFailed, post_message
from marketplace.webhooks.locks import lock_due_messages, lock_endpoint, lock_message
from marketplace.webhooks.models import MessageStatus, WebhookEndpoint, WebhookMessage

log = logging.getLogger(__name__)

#: Waits between attempts: about three days in all, as the specification advises.
WAITS = (
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=14),
    timedelta(hours=20),
    timedelta(hours=24),
)
#: The part of a wait by which it is shorter or longer, at random.
JITTER = 0.2
LIMITS = AnswerLimits(timeout_s=10.0, answer_s=15.0, bytes_max=64 * 1024)
#: Longer than an attempt may take.
CLAIM = timedelta(seconds=60)
#: Messages of one run, of one organisation in it, and sent beside each other.
RUN_MAX, RUN_MAX_PER_ORGANISATION, THREADS = 24, 6, 8
LOG_MAX = 20
_ERROR_CHARS = 300
UNREADABLE = "The endpoint's secret cannot be read any more. Rotate it, then enable the endpoint."
#: Messages are deleted so long after they were made.
KEPT_FOR = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of sending a message once."""

    #: HTTP status; ``None`` where there was no answer.
    status: int | None
    error: str
    took_s: float
    #: Why nothing more is to be sent to the endpoint, where so.
    disables: str = ""

    @property
    def is_good(self) -> bool:
        return not self.error


def deliver_all(*, clock: Callable[[], datetime]) -> None:
    """Send what is due until nothing is, unless another process is at it.

    Call outside of any transaction.
    """
    with advisory_session_lock("webhooks", "delivery", wait=False) as is_ours:
        while is_ours and deliver_due(now=clock()):
            pass


def deliver_due(*, now: datetime) -> int:
    """Send some of the messages that are due; the number sent.

    Call outside of any transaction.
    """
    claimed = _claim(now=now)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="webhooks") as pool:
        attempts = list(pool.map(lambda message: send_message(message, now=now), claimed))
    for message, attempt in zip(claimed, attempts, strict=True):
        _note(message, attempt, now=now)
    return len(claimed)


def _claim(*, now: datetime) -> list[WebhookMessage]:
    """Take messages that are due, of all organisations in turn."""
    due = WebhookMessage.objects.filter(status=MessageStatus.PENDING, due_at__lte=now)
    turn = Window(
        RowNumber(), partition_by=F("endpoint__organisation_id"), order_by=F("due_at").asc()
    )
    in_turn = due.annotate(turn=turn).filter(turn__lte=RUN_MAX_PER_ORGANISATION)
    ids = list(in_turn.order_by("turn", "due_at").values_list("pk", flat=True)[:RUN_MAX])
    with transaction.atomic():
        claimed = lock_due_messages(ids, now=now)
        for message in claimed:
            message.due_at, message.attempts = now + CLAIM, message.attempts + 1
        WebhookMessage.objects.bulk_update(claimed, ["due_at", "attempts"])
    return claimed


def send_message(message: WebhookMessage, *, now: datetime) -> Attempt:
    """Send a message once. Redirects are not followed, and inner addresses are not asked."""
    began = time.monotonic()
    body = message.body.encode()
    try:
        headers = _sign(message, now=now)
    except InvalidToken:
        return Attempt(None, UNREADABLE, 0.0, disables=UNREADABLE)
    try:
        answer_status: int | None = None
        post_message(
            message.endpoint.url,
            body=body,
            headers=headers,
            allows_private=settings.WEBHOOKS_PRIVATE,
            limits=LIMITS,
        )
        error, answer_status = "", HTTPStatus.OK.value
    except FetchFailed as failure:
        error, answer_status = str(failure)[:_ERROR_CHARS], failure.status
    return Attempt(answer_status, error, round(time.monotonic() - began, 3))


def _sign(message: WebhookMessage, *, now: datetime) -> dict[str, str]:
    """The headers of a message, signed with both secrets while one replaces the other."""
    endpoint = message.endpoint
    secrets = [decrypt_text(endpoint.secret)]
    if endpoint.earlier_secret_until is not None and now < endpoint.earlier_secret_until:
        # One that cannot be read is why it was replaced.
        with suppress(InvalidToken):
            secrets.append(decrypt_text(endpoint.earlier_secret))
    signatures = [Webhook(secret).sign(message.pk, now, message.body) for secret in secrets]
    return {
        "webhook-id": message.pk,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
        "Content-Type": "application/json",
        "User-Agent": "finetender-webhooks/1",
    }


def _note(message: WebhookMessage, attempt: Attempt, *, now: datetime) -> None:
    """Store what came of an attempt, unless the message was claimed or replayed since."""
    with transaction.atomic():
        # The endpoint first: its other messages may end with it.
        endpoint = lock_endpoint(message.endpoint_id)
        current = lock_message(message.pk, endpoint_id=message.endpoint_id)
        if endpoint is None or current is None:
            return
        if (current.attempts, current.due_at) != (message.attempts, message.due_at):
            return
        entry: dict[str, Any] = {
            "at": now.isoformat(),
            "status": attempt.status,
            "error": attempt.error,
            "took_s": attempt.took_s,
        }
        current.log = [*current.log, entry][-LOG_MAX:]
        if attempt.is_good:
            current.status = MessageStatus.DELIVERED
        elif attempt.disables or attempt.status == HTTPStatus.GONE:
            current.status = MessageStatus.FAILED
            _disable(endpoint, reason=attempt.disables or "It answered 410 Gone.", now=now)
        elif endpoint.disabled_at is not None or current.attempts > len(WAITS):
            current.status = MessageStatus.FAILED
        else:
            wait = WAITS[current.attempts - 1]
            current.due_at = now + wait * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
        current.save(update_fields=["log", "status", "due_at"])


def _disable(endpoint: WebhookEndpoint, *, reason: str, now: datetime) -> None:
    endpoint.disabled_at, endpoint.disabled_reason = now, reason
    endpoint.save(update_fields=["disabled_at", "disabled_reason"])
    endpoint.deliveries.filter(status=MessageStatus.PENDING).update(status=MessageStatus.FAILED)


def delete_old_messages(*, now: datetime) -> None:
    """Delete what was made long ago; nothing waits that long."""
    WebhookMessage.objects.filter(created_at__lt=now - KEPT_FOR).delete()
