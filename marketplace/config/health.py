"""Whether this process can serve, and what it has measured."""

import os
from http import HTTPStatus

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, JsonResponse
from django.utils.crypto import constant_time_compare
from health_check.contrib.redis import Redis as RedisCheck
from health_check.views import HealthCheckView
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from redis.asyncio import Redis

from marketplace.auction.gauges import MarketCollector
from marketplace.auction.probes import HealthPart, run_probes
from marketplace.common import clock
from marketplace.express.gauges import ExpressCollector
from marketplace.tiers.gauges import TiersCollector


class RedisHealth(RedisCheck):
    """Named without the server's address, which is private."""

    def __init__(self) -> None:
        super().__init__(client_factory=_redis)

    def __repr__(self) -> str:
        return "Redis"


def _redis() -> Redis:
    return Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


healthz = HealthCheckView.as_view(checks=["health_check.checks.Database", RedisHealth])


def health_of_part(request: HttpRequest, part: HealthPart) -> JsonResponse:
    """Answer whether a part of the market does its work, by what it wrote down: 200 or 503."""
    found = [probe for probe in run_probes(now=clock.now()) if probe.part == part]
    broken = [{"label": each.label, "since": each.since} for each in found if not each.is_ok]
    status = HTTPStatus.SERVICE_UNAVAILABLE if broken else HTTPStatus.OK
    return JsonResponse({"ok": not broken, "problems": broken}, status=status)


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
