"""Whether this process can serve, and what it has measured."""

import logging
import os
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, JsonResponse
from django.utils.crypto import constant_time_compare
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from redis import Redis

from marketplace.auction.gauges import MarketCollector
from marketplace.auction.probes import HealthPart, run_probes
from marketplace.common import clock
from marketplace.express.gauges import ExpressCollector
from marketplace.tiers.gauges import TiersCollector

log = logging.getLogger(__name__)


def healthz(_request: HttpRequest) -> JsonResponse:
    """Answer whether database and Redis do: 200, or 503 with which does not.

    Neither's address is named: it is private.
    """
    return _answer([{"label": name} for name, ask in _SERVERS.items() if not _answers(name, ask)])


def _answers(name: str, ask: Callable[[], object]) -> bool:
    try:
        ask()
    except Exception:
        log.exception("%s does not answer", name)
        return False
    return True


def _ask_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _ask_redis() -> None:
    with Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as redis:
        redis.ping()


_SERVERS: dict[str, Callable[[], object]] = {"PostgreSQL": _ask_database, "Redis": _ask_redis}


def health_of_part(request: HttpRequest, part: HealthPart) -> JsonResponse:
    """Answer whether a part of the market does its work, by what it wrote down: 200 or 503."""
    found = [probe for probe in run_probes(now=clock.now()) if probe.part == part]
    return _answer([{"label": each.label, "since": each.since} for each in found if not each.is_ok])


def _answer(problems: list[dict[str, Any]]) -> JsonResponse:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return JsonResponse({"ok": not problems, "problems": problems}, status=status)


def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus metrics, for those who hold ``METRICS_TOKEN``; for nobody where none is set."""
    expected = settings.METRICS_TOKEN
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not expected or not constant_time_compare(given, expected):
        return HttpResponseForbidden(
            "Send the metrics token as 'Authorization: Bearer <METRICS_TOKEN>'.\n",
            content_type="text/plain",
        )
    return HttpResponse(generate_latest(_registry()), content_type=CONTENT_TYPE_LATEST)


def _registry() -> CollectorRegistry:
    """What this process counts, or, where several serve, what all of them do.

    Several share their counts through files; what is read from the database has none.
    """
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    shared = CollectorRegistry()
    MultiProcessCollector(shared)
    shared.register(MarketCollector())
    shared.register(TiersCollector())
    shared.register(ExpressCollector())
    return shared
