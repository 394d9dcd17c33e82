"""Other people's secrets at rest: what has to be read again, so that it cannot be a hash."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from cryptography.fernet import Fernet
from django.conf import settings

#: Not the key of any signature that Django makes with the same setting.
_PURPOSE = b"finetender.secrets-at-rest"


def encrypt_text(text: str) -> str:
    """The text, readable only with the market's ``SECRET_KEY``."""
    return _box(settings.SECRET_KEY).encrypt(text.encode()).decode()


def decrypt_text(token: str) -> str:
    """What ``encrypt_text`` was given.

    Raises
    ------
    cryptography.fernet.InvalidToken
        It was altered, or ``SECRET_KEY`` is another one.
    """
    return _box(settings.SECRET_KEY).decrypt(token.encode()).decode()


@cache
def _box(secret: str) -> Fernet:
    digest = hashlib.blake2b(secret.encode(), person=_PURPOSE[:16], digest_size=32).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
