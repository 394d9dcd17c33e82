"""The same snapshots for browsers that have no websocket at the moment."""

from typing import cast

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from marketplace.accounts.models import User
from marketplace.common.request_rates import check_public_rate
from marketplace.live import snapshots


@never_cache
@require_GET
def poll_job(request: HttpRequest, job_id: str) -> JsonResponse:
    return JsonResponse(
        snapshots.load_job_snapshot(watcher=cast(User, request.user), job_id=job_id)
    )


@never_cache
@require_GET
def poll_market(request: HttpRequest, zone_name: str) -> JsonResponse:
    check_public_rate(request)
    return JsonResponse(snapshots.load_market_snapshot(zone_name=zone_name))
