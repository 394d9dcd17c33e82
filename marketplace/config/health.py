"""Whether this process can serve, and what it has measured."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.utils.crypto import constant_time_compare
from django_prometheus.exports import ExportToDjangoView
from health_check.views import HealthCheckView
from redis.asyncio import Redis

healthz = HealthCheckView.as_view(
    checks=[
        "health_check.checks.Database",
        (
            "health_check.contrib.redis.Redis",
            {"client_factory": lambda: Redis.from_url(settings.REDIS_URL, socket_timeout=2)},
        ),
    ]
)


def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus metrics, for whoever holds ``METRICS_TOKEN``; open where none is set."""
    expected = settings.METRICS_TOKEN
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if expected and not constant_time_compare(given, expected):
        return HttpResponseForbidden(
            "Send the metrics token as 'Authorization: Bearer <METRICS_TOKEN>'.\n",
            content_type="text/plain",
        )
    return ExportToDjangoView(request)
