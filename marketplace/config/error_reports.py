"""Error reports without secrets, in variables of any name.

Django hides settings by their names, and a password inside ``REDIS_URL`` has a harmless one.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from urllib.parse import quote, unquote, urlsplit

from django.conf import settings
from django.views.debug import ExceptionReporter

SUBSTITUTE = "********"
#: Settings that are secrets, and settings that are addresses with a password in them.
SECRETS = ("SECRET_KEY", "METRICS_TOKEN", "EMAIL_HOST_PASSWORD")
ADDRESSES = ("REDIS_URL", "CELERY_BROKER_URL")


class RedactingReporter(ExceptionReporter):
    """Django's report of an error, with every secret's value replaced."""

    def get_traceback_html(self) -> str:
        return redact(super().get_traceback_html())

    def get_traceback_text(self) -> str:
        return redact(super().get_traceback_text())


def redact(text: str) -> str:
    """The text without any secret of the settings, also where it is quoted for HTML or an URL."""
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        for written in {secret, html.escape(secret), quote(secret, safe=""), repr(secret)[1:-1]}:
            text = text.replace(written, SUBSTITUTE)
    return text


def _secrets() -> Iterator[str]:
    for name in SECRETS:
        yield from filter(None, [getattr(settings, name, "")])
    for name in ADDRESSES:
        password = urlsplit(getattr(settings, name, "") or "").password
        if password:
            yield from (password, unquote(password))
    yield from filter(None, [settings.DATABASES["default"].get("PASSWORD")])
    yield from settings.SECRET_KEY_FALLBACKS
    yield from settings.DATA_KEYS
