"""The addresses of ``workers.protocol.messages``, one domain call each."""

from __future__ import annotations

from http import HTTPStatus

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from marketplace.api.internal.endpoint import (
    authenticate_node,
    message,
    method_refusal,
    node_endpoint,
    refusal,
    reply,
)
from marketplace.common import clock
from marketplace.common.downloads import FileDownload, RangeNotSatisfiable
from marketplace.common.request_rates import check_public_rate
from marketplace.common.threads import run_in_thread
from marketplace.fleet import services as fleet
from marketplace.jobs import selectors as jobs_selectors
from marketplace.jobs import services as jobs
from workers.protocol.messages import (
    Heartbeat,
    JoinModelsReply,
    JoinModelsRequest,
    JoinRequest,
    ProgressReport,
    SliceResult,
)

#: Of the uploaded file, in hex; without it only the length tells whether it came whole.
SHA256_HEADER = "X-Content-SHA256"


@node_endpoint("POST")
def list_join_models(request: HttpRequest) -> HttpResponse:
    check_public_rate(request)
    asked = message(request, JoinModelsRequest)
    models = fleet.list_join_models(token=asked.token, now=clock.now())
    return reply(JoinModelsReply(base_models=models))


@node_endpoint("POST")
def join(request: HttpRequest) -> HttpResponse:
    check_public_rate(request)
    return reply(fleet.join_node(request=message(request, JoinRequest), now=clock.now()))


@node_endpoint("POST")
def heartbeat(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    beat = message(request, Heartbeat)
    return reply(jobs.apply_heartbeat(node=node, heartbeat=beat, now=clock.now()))


@node_endpoint("POST")
def progress(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    report = message(request, ProgressReport)
    return reply(jobs.record_progress(node=node, report=report, now=clock.now()))


@node_endpoint("POST")
def result(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    ended = message(request, SliceResult)
    outcome = jobs.finish_slice(node=node, result=ended, now=clock.now())
    return JsonResponse({"status": outcome.status_after, "repeated": outcome.repeated})


@node_endpoint("PUT")
def checkpoint(request: HttpRequest, lease_token: str, step: int) -> HttpResponse:
    stored = jobs.store_checkpoint(
        node=authenticate_node(request),
        lease_token=lease_token,
        step=step,
        content=request,
        sha256=request.headers.get(SHA256_HEADER),
        now=clock.now(),
    )
    return JsonResponse({"id": stored.pk, "sha256": stored.sha256}, status=HTTPStatus.CREATED)


@node_endpoint("PUT")
def adapter(request: HttpRequest, lease_token: str) -> HttpResponse:
    stored = jobs.store_adapter(
        node=authenticate_node(request),
        lease_token=lease_token,
        content=request,
        sha256=request.headers.get(SHA256_HEADER),
        now=clock.now(),
    )
    return JsonResponse({"id": stored.pk, "sha256": stored.sha256}, status=HTTPStatus.CREATED)


@csrf_exempt
async def blob(request: HttpRequest, lease_token: str, name: str) -> HttpResponseBase:
    """A file of a leased job, whole or from where an earlier download broke off."""
    if request.method != "GET":
        return method_refusal("GET")
    try:
        return await run_in_thread(lambda: _open_blob(request, lease_token, name))
    except RangeNotSatisfiable as error:
        response = refusal(request, error)
        response["Content-Range"] = f"bytes */{error.size}"
        return response
    except Exception as error:
        return refusal(request, error)


def _open_blob(request: HttpRequest, lease_token: str, name: str) -> FileDownload:
    found = jobs_selectors.find_lease_blob(
        node=authenticate_node(request), lease_token=lease_token, name=name, now=clock.now()
    )
    return FileDownload(
        found.file.open("rb"),
        size=found.bytes,
        sha256=found.sha256,
        range_header=request.headers.get("Range"),
    )
