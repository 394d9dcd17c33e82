"""Reading settings from environment variables, with errors that name the variable."""

import os
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from importlib.util import find_spec
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


def choice(name: str, default: str, among: Sequence[str]) -> str:
    value = os.environ.get(name) or default
    if value not in among:
        raise ImproperlyConfigured(f"{name} is {value!r}; write {' or '.join(among)}.")
    return value


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


def public_key(name: str) -> str:
    """An Ed25519 public key as hex in small letters, or nothing."""
    value = os.environ.get(name, "").strip().lower()
    if value and not re.fullmatch("[0-9a-f]{64}", value):
        raise ImproperlyConfigured(f"{name} is {value!r}; write the 64 hex digits of a public key.")
    return value


def traces_exporter() -> str:
    """Where traces go, by the variables that OpenTelemetry defines: ``otlp`` or ``console``.

    Without any of them there are none, and the answer is empty.
    """
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    has_endpoint = any(os.environ.get(name) for name in endpoints)
    name = os.environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if has_endpoint else "none")
    if name not in ("otlp", "console", "none"):
        raise ImproperlyConfigured(
            f"OTEL_TRACES_EXPORTER is {name!r}; write otlp, console or none."
        )
    if name == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    if not all(map(_is_installed, ("opentelemetry.sdk", "opentelemetry.exporter.otlp"))):
        raise ImproperlyConfigured(
            "Traces need the extra: pip install 'finetender-market[traces]'."
        )
    return name


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
