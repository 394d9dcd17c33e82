"""Signed messages between the market and a vendor's systems, both ways.

As in the Standard Webhooks specification: ``webhook-id``, ``webhook-timestamp`` and
``webhook-signature``, which is ``v1,`` and the HMAC-SHA256 of ``id.timestamp.body``, in base64.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from datetime import datetime

SECRET_PREFIX = "whsec_"  # noqa: S105
#: A message signed longer ago, or further in the future, is refused.
TOLERANCE_S = 300
_SECRET_BYTES = 32
_VERSION = "v1,"


class BadSignature(Exception):
    """A message is not signed, not by whom it says, or too old."""


def create_secret() -> str:
    """A new secret, as the specification writes it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


class MessageSigner:
    """The signature of one message, whose body may come in pieces."""

    def __init__(self, secret: str, *, message_id: str, timestamp: int) -> None:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
        self._digest = hmac.new(key, f"{message_id}.{timestamp}.".encode(), hashlib.sha256)

    def update(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self._digest.update(piece)

    def sign(self) -> str:
        return _VERSION + base64.b64encode(self._digest.digest()).decode()


def sign_message(secret: str, body: bytes, *, message_id: str, now: datetime) -> dict[str, str]:
    """The headers of a message."""
    timestamp = int(now.timestamp())
    signer = MessageSigner(secret, message_id=message_id, timestamp=timestamp)
    signer.update(body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signer.sign(),
    }


def begin_check(
    secret: str, headers: Mapping[str, str], *, message_id: str, now: datetime
) -> MessageSigner:
    """What the body is added to before ``end_check``.

    Raises
    ------
    BadSignature
        It names another message, or a time that is too far from now.
    """
    timestamp = headers.get("webhook-timestamp", "")
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise BadSignature("webhook-timestamp is not a time in seconds")
    if abs(int(timestamp) - now.timestamp()) > TOLERANCE_S:
        raise BadSignature(f"webhook-timestamp is more than {TOLERANCE_S} s from now")
    if headers.get("webhook-id") != message_id:
        raise BadSignature(f"webhook-id is not {message_id}")
    return MessageSigner(secret, message_id=message_id, timestamp=int(timestamp))


def end_check(signer: MessageSigner, headers: Mapping[str, str]) -> None:
    """Compare the signatures; one of several given is enough.

    Raises
    ------
    BadSignature
    """
    given = headers.get("webhook-signature", "").split()
    own = signer.sign().encode()
    if not any(hmac.compare_digest(own, one.encode()) for one in given):
        raise BadSignature("webhook-signature is not this message's")


def check_message(
    secret: str, body: bytes, headers: Mapping[str, str], *, message_id: str, now: datetime
) -> None:
    """Check a message that is there as a whole.

    Raises
    ------
    BadSignature
    """
    signer = begin_check(secret, headers, message_id=message_id, now=now)
    signer.update(body)
    end_check(signer, headers)
