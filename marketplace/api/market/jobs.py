"""``/api/jobs``: where a job stands, what happened, and what it made."""

from __future__ import annotations

from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import caller
from marketplace.api.market import schemas
from marketplace.api.market.owned import job_of, jobs_of
from marketplace.api.market.shapes import (
    cancel_shape,
    checkpoint_shape,
    job_event_shape,
    job_shape,
)
from marketplace.api.pagination import each, page, page_limit
from marketplace.api.views import MarketView
from marketplace.auction.selectors import bid_of
from marketplace.auction.settlement import refund_if_cancelled
from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.jobs.models import Artifact, JobStatus
from marketplace.jobs.selectors import job_checkpoints, job_events
from marketplace.jobs.services import job_cancel


class JobsView(MarketView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="jobs_list", parameters=schemas.PAGE, responses={200: schemas.JOB_PAGE}
    )
    def get(self, request: Request) -> Response:
        jobs = jobs_of(caller(request).organisation)
        status = request.query_params.get("status")
        if status is not None:
            if status not in JobStatus.values:
                raise UserError(
                    "invalid_status",
                    f"A status is one of {', '.join(JobStatus.values)}.",
                    param="status",
                )
            jobs = jobs.filter(status=status)
        return Response(page(request, jobs, each(job_shape)))


class JobView(MarketView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="jobs_read", responses={200: schemas.JOB})
    def get(self, request: Request, job_id: str) -> Response:
        return Response(job_shape(job_of(caller(request).organisation, job_id)))


class JobEventsView(MarketView):
    """The job's history, oldest first; ``after`` is the ``seq`` of the last event seen."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(parameters=schemas.EVENTS_PAGE, responses={200: schemas.JOB_EVENT_PAGE})
    def get(self, request: Request, job_id: str) -> Response:
        job = job_of(caller(request).organisation, job_id)
        after = request.query_params.get("after", "0")
        if not after.isascii() or not after.isdigit():
            raise UserError(
                "invalid_cursor", "'after' must be the seq of the last event seen.", param="after"
            )
        limit = page_limit(request)
        found = list(job_events(job, after_seq=int(after[:18]))[: limit + 1])
        data = [job_event_shape(event) for event in found[:limit]]
        return Response({"data": data, "has_more": len(found) > limit})


class JobCheckpointsView(MarketView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(parameters=schemas.PAGE, responses={200: schemas.CHECKPOINT_PAGE})
    def get(self, request: Request, job_id: str) -> Response:
        job = job_of(caller(request).organisation, job_id)
        return Response(page(request, job_checkpoints(job), each(checkpoint_shape)))


class JobAdapterView(MarketView):
    """The finished adapter as a zip that ``peft`` reads once unpacked."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(responses={(200, "application/zip"): OpenApiResponse(OpenApiTypes.BINARY)})
    def get(self, request: Request, job_id: str) -> FileResponse:
        job = job_of(caller(request).organisation, job_id)
        artifact = Artifact.objects.filter(job=job).first()
        if artifact is None:
            raise NotFound(
                "no_adapter",
                f"The job is {job.status}; its adapter is here once it has succeeded.",
                extra={"status": job.status},
            )
        return FileResponse(
            artifact.file.open("rb"),
            as_attachment=True,
            filename=f"{job.pk}-adapter.zip",
            content_type="application/zip",
            headers={"ETag": f'"{artifact.sha256}"'},
        )


class JobCancelView(MarketView):
    """End a job; what it did not use is refunded. ``GET`` says how much that would be now."""

    scopes = {"GET": "jobs:read", "POST": "jobs:write"}

    @extend_schema(operation_id="jobs_cancel_preview", responses={200: schemas.CANCEL_PREVIEW})
    def get(self, request: Request, job_id: str) -> Response:
        organisation = caller(request).organisation
        job = job_of(organisation, job_id)
        bid = bid_of(organisation, job.bid_id)
        refund = refund_if_cancelled(bid=bid, job=job) if job.is_active else 0
        return Response(cancel_shape(job, bid, refund_micros=refund))

    @extend_schema(operation_id="jobs_cancel", request=None, responses={200: schemas.JOB})
    def post(self, request: Request, job_id: str) -> Response:
        who = caller(request)
        job = job_of(who.organisation, job_id)
        return Response(job_shape(job_cancel(job=job, cancelled_by=who.user, now=clock.now())))
