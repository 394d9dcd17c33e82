"""Reading settings from environment variables, with errors that name the variable."""

import os
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ImproperlyConfigured

TRUE_WORDS = {"1", "true", "yes", "on"}
FALSE_WORDS = {"0", "false", "no", "off", ""}


def text(name: str, default: str | None = None) -> str:
    value = os.environ.get(name, default)
    if value is None:
        raise ImproperlyConfigured(f"Set the environment variable {name}.")
    return value


def flag(name: str, *, default: bool) -> bool:
    value = os.environ.get(name)
    if value is None:
        return default
    if value.lower() in TRUE_WORDS:
        return True
    if value.lower() in FALSE_WORDS:
        return False
    raise ImproperlyConfigured(f"{name} is {value!r}; write 1 or 0.")


def number(name: str, default: float, *, at_least: float = 0.0) -> float:
    value = os.environ.get(name)
    if value is None:
        return default
    try:
        parsed = float(value)
    except ValueError:
        parsed = float("nan")
    if not at_least <= parsed < float("inf"):
        raise ImproperlyConfigured(f"{name} is {value!r}; write a number from {at_least:g} up.")
    return parsed


def words(name: str, default: str = "") -> list[str]:
    """A comma-separated list."""
    return [word.strip() for word in os.environ.get(name, default).split(",") if word.strip()]


def rates(name: str) -> dict[str, int]:
    """Percentages by country, as in ``DE=19,CH=8.1``; in thousandths of a percent."""
    table: dict[str, int] = {}
    for word in words(name):
        country, _, percent = word.partition("=")
        try:
            milli = Decimal(percent.strip()) * 1000
            whole = int(milli)
        except (InvalidOperation, ValueError, OverflowError):
            milli, whole = Decimal(-1), 0
        if milli != whole or not 0 <= whole <= 100_000 or not re.fullmatch("[A-Z]{2}", country):
            raise ImproperlyConfigured(
                f"{name} has {word!r}; write countries with percentages, like DE=19,CH=8.1."
            )
        table[country] = whole
    return table


def folder(name: str, default: Path) -> Path:
    return Path(os.environ.get(name) or default).expanduser().resolve()


def celery_broker(redis_url: str) -> str:
    """The same Redis in Celery's spelling, which names sockets another way."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.path}?virtual_host={database}"


def loopback_url(name: str) -> str:
    """An address of this machine, or nothing."""
    value = os.environ.get(name, "").rstrip("/")
    if value and urlsplit(value).hostname not in {"127.0.0.1", "localhost"}:
        raise ImproperlyConfigured(f"{name} is {value!r}; it may only name this machine.")
    return value
