"""The addresses of ``workers.protocol.messages``, one domain call each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from marketplace.api.internal.endpoint import (
    authenticate_node,
    build_refusal,
    build_reply,
    find_bearer_token,
    node_endpoint,
    read_message,
    refuse_method,
)
from marketplace.auction.node_hours import list_node
from marketplace.auction.witnesses.keys import (
    find_public_key,
    find_release_serial,
    find_signed_release,
)
from marketplace.common import clock
from marketplace.common.downloads import FileDownload, RangeNotSatisfiable
from marketplace.common.request_rates import check_public_rate
from marketplace.common.threads import run_in_thread
from marketplace.fleet import services as fleet
from marketplace.fleet.releases import find_release
from marketplace.jobs import errands
from marketplace.jobs import selectors as jobs_selectors
from marketplace.jobs import services as jobs
from marketplace.jobs.models import Artifact
from marketplace.questions.answering import find_question_blob
from workers.protocol.errands import ErrandResult
from workers.protocol.joining import JoinStepReport
from workers.protocol.messages import Heartbeat, JoinModelsRequest, JoinRequest
from workers.protocol.plan_queue import NodeToken, PlanSession, PlanSessionRequest
from workers.protocol.reports import ProgressReport, SliceResult
from workers.protocol.turns import DeviceTurnRequest

#: Of the uploaded file, in hex; without it only the length tells whether it came whole.
SHA256_HEADER = "X-Content-SHA256"


@node_endpoint("POST")
def list_join_models(request: HttpRequest) -> HttpResponse:
    check_public_rate(request)
    asked = read_message(request, JoinModelsRequest)
    return build_reply(fleet.list_join_models(request=asked, now=clock.now()))


@node_endpoint("POST")
def note_join_step(request: HttpRequest) -> HttpResponse:
    check_public_rate(request)
    fleet.note_join_step(report=read_message(request, JoinStepReport), now=clock.now())
    return JsonResponse({})


@node_endpoint("POST")
def join(request: HttpRequest) -> HttpResponse:
    check_public_rate(request)
    asked = read_message(request, JoinRequest)
    # Before the token is used: without a key it stays good.
    known = {"market_key": find_public_key(), "release_serial": find_release_serial()}
    joined = list_node(request=asked, now=clock.now())
    return build_reply(replace(joined, **known))


@node_endpoint("POST")
def show_release(request: HttpRequest) -> HttpResponse:
    check_public_rate(request)
    return build_reply(find_signed_release(find_release()))


@node_endpoint("POST")
def rotate_token(request: HttpRequest) -> HttpResponse:
    node, token = authenticate_node(request), find_bearer_token(request)
    return build_reply(NodeToken(fleet.rotate_node_token(node=node, token=token, now=clock.now())))


@node_endpoint("POST")
def open_plan_session(request: HttpRequest) -> HttpResponse:
    node, asked = authenticate_node(request), read_message(request, PlanSessionRequest)
    return build_reply(PlanSession(fleet.open_plan_session(node=node, request=asked)))


@node_endpoint("POST")
def take_heartbeat(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    beat = read_message(request, Heartbeat)
    return build_reply(jobs.apply_heartbeat(node=node, heartbeat=beat, now=clock.now()))


@node_endpoint("POST")
def answer_turn(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    asked = read_message(request, DeviceTurnRequest)
    return build_reply(jobs.answer_turn(node=node, request=asked, now=clock.now()))


@node_endpoint("POST")
def take_progress(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    report = read_message(request, ProgressReport)
    return build_reply(jobs.record_progress(node=node, report=report, now=clock.now()))


@node_endpoint("POST")
def take_result(request: HttpRequest) -> HttpResponse:
    node = authenticate_node(request)
    ended = read_message(request, SliceResult)
    outcome = jobs.finish_slice(node=node, result=ended, now=clock.now())
    return JsonResponse({"status": outcome.status, "repeated": outcome.repeated})


@node_endpoint("POST")
def take_errand_result(request: HttpRequest, token: str) -> HttpResponse:
    node = authenticate_node(request)
    result = read_message(request, ErrandResult)
    errands.take_result(node=node, token=token, result=result, now=clock.now())
    return JsonResponse({})


@node_endpoint("PUT")
def take_errand_file(request: HttpRequest, token: str) -> HttpResponse:
    sha256 = errands.take_file(
        node=authenticate_node(request),
        token=token,
        content=request,
        sha256=request.headers.get(SHA256_HEADER),
        now=clock.now(),
    )
    return JsonResponse({"sha256": sha256}, status=HTTPStatus.CREATED)


@node_endpoint("PUT")
def take_checkpoint(request: HttpRequest, lease_token: str, step: int) -> HttpResponse:
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
def take_adapter(request: HttpRequest, lease_token: str) -> HttpResponse:
    stored = jobs.store_adapter(
        node=authenticate_node(request),
        lease_token=lease_token,
        content=request,
        sha256=request.headers.get(SHA256_HEADER),
        now=clock.now(),
    )
    return JsonResponse({"id": stored.pk, "sha256": stored.sha256}, status=HTTPStatus.CREATED)


@csrf_exempt
async def send_blob(request: HttpRequest, lease_token: str, name: str) -> HttpResponseBase:
    """A file of a leased job, whole or from where an earlier download broke off."""
    return await _answer_blob(request, lambda: _open_blob(request, lease_token, name))


@csrf_exempt
async def send_errand_blob(request: HttpRequest, token: str, name: str) -> HttpResponseBase:
    """A file that a node needs for an errand."""
    return await _answer_blob(request, lambda: _open_errand_blob(request, token, name))


@csrf_exempt
async def send_question_blob(request: HttpRequest, token: str, name: str) -> HttpResponseBase:
    """The adapter with which a node answers a question."""
    return await _answer_blob(request, lambda: _open_question_blob(request, token, name))


async def _answer_blob(
    request: HttpRequest, open_file: Callable[[], FileDownload]
) -> HttpResponseBase:
    if request.method != "GET":
        return refuse_method("GET")
    try:
        return await run_in_thread(open_file)
    except RangeNotSatisfiable as error:
        response = build_refusal(request, error)
        response["Content-Range"] = f"bytes */{error.size}"
        return response
    except Exception as error:
        return build_refusal(request, error)


def _open_blob(request: HttpRequest, lease_token: str, name: str) -> FileDownload:
    found = jobs_selectors.find_lease_blob(
        node=authenticate_node(request), lease_token=lease_token, name=name, now=clock.now()
    )
    return _serve(request, found)


def _open_errand_blob(request: HttpRequest, token: str, name: str) -> FileDownload:
    node = authenticate_node(request)
    found = errands.find_errand_blob(node=node, token=token, name=name, now=clock.now())
    return _serve(request, found)


def _open_question_blob(request: HttpRequest, token: str, name: str) -> FileDownload:
    node = authenticate_node(request)
    found = find_question_blob(node=node, token=token, name=name, now=clock.now())
    return _serve(request, found)


def _serve(request: HttpRequest, found: jobs_selectors.Blob | Artifact) -> FileDownload:
    return FileDownload(
        found.file.open("rb"),
        size=found.bytes,
        sha256=found.sha256,
        range_header=request.headers.get("Range"),
    )
