"""``/api/vendor-work/<link>``: an outside vendor fetches data and delivers, by a signed link."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from marketplace.api.internal.endpoint import build_refusal, refuse_method
from marketplace.common import clock
from marketplace.common.client_address import find_client_address
from marketplace.common.downloads import FileDownload
from marketplace.common.request_rates import check_public_rate
from marketplace.vendors.handover import open_data, open_link, receive_delivery


@csrf_exempt
def send_data(request: HttpRequest, token: str) -> HttpResponseBase:
    """The data as their owner lets them leave."""
    if request.method != "GET":
        return refuse_method("GET")
    try:
        check_public_rate(request)
        file, size, name = open_data(
            token=token, address=find_client_address(request), now=clock.now()
        )
        return FileDownload(
            file,
            size=size,
            sha256=name,
            name=f"{name}.jsonl",
            range_header=request.headers.get("Range"),
        )
    except Exception as error:
        return build_refusal(request, error)


@csrf_exempt
def take_delivery(request: HttpRequest, token: str) -> HttpResponseBase:
    """``PUT``: the prepared rows, signed. ``GET``: what became of what was delivered."""
    if request.method not in ("PUT", "GET"):
        return refuse_method("PUT")
    try:
        check_public_rate(request)
        now = clock.now()
        if request.method == "PUT":
            made = receive_delivery(token=token, content=request, headers=request.headers, now=now)
        else:
            made = open_link(token, now=now)
        return JsonResponse(
            {
                "preparation_id": made.pk,
                "is_being_checked": made.submitted_at is not None,
                "due_at": made.due_at.isoformat(),
                "refusals": made.refusals,
            },
            status=202 if request.method == "PUT" else 200,
        )
    except Exception as error:
        return build_refusal(request, error)
