"""``Idempotency-Key``: the same request sent again gets the answer of the first.

The first request claims a row before it works. A second one that comes while the
first is at it waits for it a little, then gets the answer to come back. Answers that did
nothing (bad input, no money) are not kept, so a request can be put right and
sent again under its key; a server that died in between leaves a claim that is
taken over, which is safe because bids keep the key for themselves as well. A bid
that comes as JSON needs no row here: the bid itself is what its key stands for.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db import connection
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import ApiKey, Organisation
from marketplace.api.kept_answers import KEPT_FOR
from marketplace.api.models import IdempotencyRecord
from marketplace.common.encryption import decrypt_text, encrypt_text
from marketplace.common.errors import Conflict, UserError
from marketplace.common.ids import new_id

HEADER = "Idempotency-Key"
KEY_LIMIT = 255
#: A claim this old belongs to a server that is gone.
ABANDONED_AFTER = timedelta(seconds=60)
WAIT_S = 3.0
LOOK_EVERY_S = 0.05
#: In which OpenAI's clients count their retries, and how long after the first they may come.
RETRY_HEADER = "X-Stainless-Retry-Count"
RETRIED_WITHIN = timedelta(minutes=5)
KEPT_HEADERS = ("Location",)
#: Tells the answer to a request that was answered before.
REPLAYED = {"Idempotent-Replayed": "true"}


def read_idempotency_key(request: Request) -> str | None:
    """The request's key, checked.

    Raises
    ------
    UserError
        ``invalid_idempotency_key``.
    """
    return check_idempotency_key(request.headers.get(HEADER))


def check_idempotency_key(key: str | None) -> str | None:
    """A key as it was sent, if it can be one.

    Raises
    ------
    UserError
        ``invalid_idempotency_key``.
    """
    if key is None:
        return None
    if not 1 <= len(key) <= KEY_LIMIT or not key.isprintable():
        raise UserError(
            "invalid_idempotency_key",
            f"{HEADER} must have 1 to {KEY_LIMIT} printable characters; a random UUID is good.",
            param=HEADER,
        )
    return key


def find_shared_key(request: Request, organisation: Organisation, *, now: datetime) -> str:
    """The request's key, or one that it shares with its automatic retries.

    OpenAI's clients send no key. They count their retries, so a retry takes the key that the
    newest request with the same content got a short while ago.

    Raises
    ------
    UserError
        ``invalid_idempotency_key``.
    """
    given = read_idempotency_key(request)
    if given is not None:
        return given
    sender = request.auth.pk if isinstance(request.auth, ApiKey) else ""
    content = hashlib.sha256(f"{sender}{_request_hash(request)}".encode()).hexdigest()
    if request.headers.get(RETRY_HEADER, "0") != "0":
        first = IdempotencyRecord.objects.filter(
            organisation=organisation,
            address=_address(request),
            key__startswith=f"auto:{content}:",
            started_at__gte=now - RETRIED_WITHIN,
        )
        if (found := first.order_by("-started_at").first()) is not None:
            return found.key
    return f"auto:{content}:{new_id('req')}"


def answer_once(
    request: Request,
    organisation: Organisation,
    work: Callable[[], Response],
    *,
    now: datetime,
    key: str | None = None,
    is_secret: bool = False,
) -> Response:
    """``work()``, or the kept answer of the request that did it already.

    Parameters
    ----------
    key
        Stands for the request's own.
    is_secret
        The answer holds a secret of which the market has a hash only; it is kept sealed.

    Raises
    ------
    Conflict
        ``idempotency_key_reused``: the key came with another request before.
        ``idempotency_in_progress``: the first request is still being worked on.
    """
    key = key or read_idempotency_key(request)
    if key is None:
        return work()
    record = _claim(request, organisation, key, now)
    if record.status is not None:
        return Response(
            json.loads(decrypt_text(record.sealed_body)) if record.sealed_body else record.body,
            status=record.status,
            headers=record.headers | REPLAYED,
        )
    try:
        response = work()
    except BaseException:
        IdempotencyRecord.objects.filter(pk=record.pk).delete()
        raise
    if response.status_code in (202,) or not _had_effect(response):
        IdempotencyRecord.objects.filter(pk=record.pk).delete()
    else:
        headers = {name: response[name] for name in KEPT_HEADERS if name in response}
        # Rendered first: what is kept is what was sent.
        text = json.dumps(response.data, default=str)
        IdempotencyRecord.objects.filter(pk=record.pk).update(
            status=response.status_code,
            body=None if is_secret else json.loads(text),
            sealed_body=encrypt_text(text) if is_secret else "",
            headers=headers,
        )
    return response


def _had_effect(response: Response) -> bool:
    if 200 <= response.status_code < 300:
        return True
    # A refused bid was decided; it must not be decided again under the same key.
    return isinstance(response.data, dict) and "bid" in response.data


def _claim(
    request: Request, organisation: Organisation, key: str, now: datetime
) -> IdempotencyRecord:
    """A row of our own without an answer, or the answered row of an earlier request."""
    request_hash = _request_hash(request)
    identity = {
        "organisation": organisation,
        "address": _address(request),
        "key": key,
    }
    ends_at = time.monotonic() + WAIT_S
    while True:
        record, created = IdempotencyRecord.objects.get_or_create(
            **identity, defaults={"request_hash": request_hash, "started_at": now}
        )
        if created:
            return record
        age = now - record.started_at
        if age > KEPT_FOR or (record.status is None and age > ABANDONED_AFTER):
            # Only one of those who see it takes it over.
            IdempotencyRecord.objects.filter(pk=record.pk, started_at=record.started_at).delete()
            continue
        if record.request_hash != request_hash:
            raise Conflict(
                "idempotency_key_reused",
                f"This {HEADER} came with another request before. "
                "Send a new key with a new request.",
                param=HEADER,
            )
        if record.status is not None:
            return record
        if time.monotonic() > ends_at:
            raise Conflict(
                "idempotency_in_progress",
                "The first request with this key is still being worked on; "
                "send it again in a second.",
                param=HEADER,
                extra={"retry": True},
            )
        if not connection.in_atomic_block:
            connection.close()
        time.sleep(LOOK_EVERY_S)


def _address(request: Request) -> str:
    return f"{request.method} {request.path}"[:255]


def _request_hash(request: Request) -> str:
    """Of what was asked; a multipart body differs in its boundary each time, its parts do not."""
    digest = hashlib.sha256()
    content: Any = request.data
    parts: list[tuple[str, str]] = []
    items = content.lists() if hasattr(content, "lists") else None
    if items is None:
        digest.update(json.dumps(content, sort_keys=True, default=str).encode())
        return digest.hexdigest()
    for name, values in items:
        for value in values:
            if isinstance(value, UploadedFile):
                value.seek(0)
                inner = hashlib.sha256()
                for chunk in value.chunks():
                    inner.update(chunk)
                value.seek(0)
                parts.append((name, f"{value.name}\0{inner.hexdigest()}"))
            else:
                parts.append((name, str(value)))
    digest.update(json.dumps(sorted(parts)).encode())
    return digest.hexdigest()
