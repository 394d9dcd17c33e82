"""Other people's secrets at rest: what has to be read again, so that it cannot be a hash.

The first of ``DATA_KEYS`` seals, all of them open. ``SECRET_KEY`` and its fallbacks open as well,
so that a market may begin with ``SECRET_KEY`` alone and move to keys of their own without an
outage: set the new key, restart, ``manage.py rotate_secrets``, take the old key away.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from cryptography.fernet import Fernet, MultiFernet
from django.conf import settings
from django.db import models

#: Not the key of any signature that Django makes with the same setting.
_PURPOSE = b"finetender.secrets-at-rest"


class SealedTextField(models.TextField):
    """A column of sealed texts: ``rotate_secrets`` finds it by its type. Empty: none is kept."""

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.TextField", args, kwargs


def encrypt_text(text: str) -> str:
    """Seal a text, so that only the market's keys open it."""
    return _build_box().encrypt(text.encode()).decode()


def decrypt_text(token: str) -> str:
    """Open what ``encrypt_text`` sealed.

    Raises
    ------
    cryptography.fernet.InvalidToken
        It was altered, or its key is not among the market's keys any more.
    """
    return _build_box().decrypt(token.encode()).decode()


def seal_again(token: str) -> str:
    """Seal a sealed text with the first key.

    Raises
    ------
    cryptography.fernet.InvalidToken
        As ``decrypt_text``.
    """
    return _build_box().rotate(token.encode()).decode()


def _build_box() -> MultiFernet:
    keys = (*settings.DATA_KEYS, settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([_build_key(key) for key in keys])


@cache
def _build_key(secret: str) -> Fernet:
    digest = hashlib.blake2b(secret.encode(), person=_PURPOSE[:16], digest_size=32).digest()
    return Fernet(base64.urlsafe_b64encode(digest))
