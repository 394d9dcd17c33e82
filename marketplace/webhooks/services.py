"""What owners do with their endpoints."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.durable.services import restart_work
from marketplace.common.encryption import encrypt_text
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.outbound import FetchFailed, check_address
from marketplace.webhooks.locks import lock_endpoint
from marketplace.webhooks.models import (
    MessageForm,
    MessageStatus,
    WebhookEndpoint,
    WebhookMessage,
)
from marketplace.webhooks.news import NOTICE_KINDS, NoticeWords, write_chat_body
from marketplace.webhooks.outbox import (
    EVENT_TYPES,
    TEST_TYPE,
    build_delivery,
    build_message,
    store_messages,
)

#: Endpoints of one organisation.
ENDPOINTS_MAX = 20
#: How long the earlier secret signs beside a new one.
OVERLAP = timedelta(hours=24)
_SECRET_BYTES = 32
_TEST_WORDS = NoticeWords(
    TEST_TYPE, "", "A test", "Notices of this market arrive here.", "/settings/webhooks"
)


def create_endpoint(
    *,
    organisation: Organisation,
    created_by: User,
    url: str,
    events: Collection[str],
    now: datetime,
    form: MessageForm = MessageForm.STANDARD,
) -> tuple[WebhookEndpoint, str]:
    """Add an endpoint; gives it with its secret, which is shown once.

    ``form``: a chat room gets sentences, of the events that people are told of.

    Raises
    ------
    UserError
        ``invalid_url`` or ``invalid_events``.
    Conflict
        ``too_many_webhooks``.
    """
    url = url.strip()
    try:
        check_address(url, allows_private=settings.WEBHOOKS_PRIVATE)
    except FetchFailed as error:
        raise UserError("invalid_url", f"{error}.", param="url") from None
    if len(url) > 500 or not url.isascii() or not url.isprintable():
        raise UserError("invalid_url", "An address has at most 500 plain characters.", param="url")
    types = EVENT_TYPES if form is MessageForm.STANDARD else tuple(NOTICE_KINDS)
    unknown = sorted(set(events) - set(types))
    if unknown or not events:
        raise UserError(
            "invalid_events",
            f"Choose one event or more of {', '.join(types)}"
            + (f"; {', '.join(unknown)[:200]} is not one." if unknown else "."),
            param="events",
        )
    if WebhookEndpoint.objects.filter(organisation=organisation).count() >= ENDPOINTS_MAX:
        raise Conflict("too_many_webhooks", f"Delete one of the {ENDPOINTS_MAX} webhooks first.")
    secret = _new_secret()
    endpoint = WebhookEndpoint.objects.create(
        organisation=organisation,
        created_by=created_by,
        url=url,
        form=form,
        events=sorted(set(events)),
        secret=encrypt_text(secret),
        created_at=now,
    )
    return endpoint, secret


def find_endpoint(organisation: Organisation, endpoint_id: str) -> WebhookEndpoint:
    """One of the organisation's endpoints.

    Raises
    ------
    NotFound
        ``unknown_webhook``.
    """
    endpoints = WebhookEndpoint.objects.filter(organisation=organisation)
    found = endpoints.filter(pk=endpoint_id.replace("\0", "")).first()
    if found is None:
        raise _unknown_endpoint()
    return found


def rotate_secret(*, endpoint: WebhookEndpoint, now: datetime) -> str:
    """A new secret; the one before signs beside it for ``OVERLAP``, so that nothing is lost."""
    secret = _new_secret()
    with transaction.atomic():
        locked = lock_endpoint(endpoint.pk)
        if locked is None:
            raise _unknown_endpoint()
        locked.earlier_secret, locked.earlier_secret_until = locked.secret, now + OVERLAP
        locked.secret = encrypt_text(secret)
        locked.save(update_fields=["secret", "earlier_secret", "earlier_secret_until"])
    return secret


def enable_endpoint(*, endpoint: WebhookEndpoint) -> None:
    """Send to an endpoint again; what was given up in between can be replayed."""
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(disabled_at=None, disabled_reason="")


def send_test(*, endpoint: WebhookEndpoint, now: datetime) -> WebhookMessage:
    """Send a message about no event.

    Raises
    ------
    Conflict
        ``webhook_disabled``.
    """
    _check_enabled(endpoint)
    form = MessageForm(endpoint.form)
    body = None if form is MessageForm.STANDARD else write_chat_body(_TEST_WORDS, form)
    message = build_message(endpoint, kind=TEST_TYPE, data={"id": endpoint.pk}, now=now, body=body)
    with transaction.atomic():
        store_messages(message)
    return message


def replay_message(*, endpoint: WebhookEndpoint, message_id: str, now: datetime) -> WebhookMessage:
    """Send a message again under its id; one that waits is sent now.

    Raises
    ------
    NotFound
        ``unknown_delivery``.
    Conflict
        ``webhook_disabled``.
    """
    _check_enabled(endpoint)
    with transaction.atomic():
        messages = endpoint.deliveries.select_related("endpoint")
        message = messages.filter(pk=message_id.replace("\0", "")).first()
        if message is None:
            raise NotFound("unknown_delivery", "The webhook has no such delivery.")
        message.status, message.due_at = MessageStatus.PENDING, now
        # First, as a worker does it: what an attempt under way finds is not stored over this.
        restart_work(build_delivery(message))
        message.save(update_fields=["status", "due_at"])
    return message


def _check_enabled(endpoint: WebhookEndpoint) -> None:
    if endpoint.disabled_at is not None:
        raise Conflict("webhook_disabled", "Enable the webhook first.")


def _unknown_endpoint() -> NotFound:
    return NotFound("unknown_webhook", "You have no such webhook; GET /api/webhooks lists them.")


def _new_secret() -> str:
    return f"whsec_{base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}"
