"""Sending messages as durable work.

A message that is sent again has the same id, by which its receiver knows it. Some are sent beside
each other, so that a slow endpoint does not hold up the others.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from cryptography.fernet import InvalidToken
from django.conf import settings
from standardwebhooks import Webhook

from marketplace.common.durable.kinds import Failure, HeldWork, WorkFailed
from marketplace.common.encryption import decrypt_text
from marketplace.common.outbound import AnswerLimits, FetchFailed, ask_stranger
from marketplace.webhooks.locks import lock_endpoint
from marketplace.webhooks.models import MessageStatus, WebhookEndpoint, WebhookMessage

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
#: Messages sent at the same time, and of one organisation.
AT_ONCE, AT_ONCE_PER_ORGANISATION = 24, 6
LOG_MAX = 20
_ERROR_CHARS = 300
UNREADABLE = "The endpoint's secret cannot be read any more. Rotate it, then enable the endpoint."
#: Messages are deleted this time after they were made.
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


class DeliveryFailed(WorkFailed):
    """A message did not arrive."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt.error, is_final=bool(attempt.disables))
        self.attempt = attempt


def compute_wait(failures: int) -> timedelta | None:
    """The wait before the next attempt, at random around what ``WAITS`` says."""
    if failures > len(WAITS):
        return None
    return WAITS[failures - 1] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311


def load_message(work: HeldWork) -> WebhookMessage | None:
    """The message with its endpoint, unless one of them is deleted or disabled."""
    pending = WebhookMessage.objects.filter(pk=work.key, status=MessageStatus.PENDING)
    return pending.select_related("endpoint").first()


def deliver_message(work: HeldWork, message: WebhookMessage) -> Attempt:
    """Send a message once.

    Raises
    ------
    DeliveryFailed
        Finally where nothing more is to be sent to the endpoint.
    """
    attempt = send_message(message, now=work.begun_at)
    if attempt.error:
        raise DeliveryFailed(attempt)
    return attempt


def record_delivery(
    _work: HeldWork, message: WebhookMessage, attempt: Attempt, *, now: datetime
) -> None:
    """Store that a message arrived."""
    message.status = MessageStatus.DELIVERED
    _log_attempt(message, attempt, now=now)


def record_failed_delivery(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """Store an attempt that failed; the endpoint's other messages may end with it."""
    error = failure.error
    attempt = (
        error.attempt if isinstance(error, DeliveryFailed) else Attempt(None, failure.reason, 0.0)
    )
    endpoint_id = WebhookMessage.objects.values_list("endpoint", flat=True).get(pk=work.key)
    endpoint = lock_endpoint(endpoint_id)
    message = WebhookMessage.objects.filter(pk=work.key).first()
    if endpoint is None or message is None:
        return
    if failure.retry_at is None or endpoint.disabled_at is not None:
        message.status = MessageStatus.FAILED
    else:
        message.due_at = failure.retry_at
    _log_attempt(message, attempt, now=now)
    if attempt.disables:
        _disable(endpoint, reason=attempt.disables, now=now)


def _log_attempt(message: WebhookMessage, attempt: Attempt, *, now: datetime) -> None:
    entry: dict[str, Any] = {
        "at": now.isoformat(),
        "status": attempt.status,
        "error": attempt.error,
        "took_s": attempt.took_s,
    }
    message.log = [*message.log, entry][-LOG_MAX:]
    message.save(update_fields=["log", "status", "due_at"])


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
        ask_stranger(
            message.endpoint.url,
            body=body,
            headers=headers,
            allows_private=settings.WEBHOOKS_PRIVATE,
            limits=LIMITS,
        )
        error, answer_status = "", HTTPStatus.OK.value
    except FetchFailed as failure:
        error, answer_status = str(failure)[:_ERROR_CHARS], failure.status
    disables = "It answered 410 Gone." if answer_status == HTTPStatus.GONE else ""
    return Attempt(answer_status, error, round(time.monotonic() - began, 3), disables)


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


def _disable(endpoint: WebhookEndpoint, *, reason: str, now: datetime) -> None:
    endpoint.disabled_at, endpoint.disabled_reason = now, reason
    endpoint.save(update_fields=["disabled_at", "disabled_reason"])
    endpoint.deliveries.filter(status=MessageStatus.PENDING).update(status=MessageStatus.FAILED)


def delete_old_messages(*, now: datetime) -> None:
    """Delete what was made long ago; nothing waits that long."""
    WebhookMessage.objects.filter(created_at__lt=now - KEPT_FOR).delete()
