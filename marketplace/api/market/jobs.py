"""``/api/jobs``: where a job stands, what happened, and what it made."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import page_of
from marketplace.api.callers import get_caller
from marketplace.api.idempotency import read_idempotency_key
from marketplace.api.market import schemas
from marketplace.api.market.asked_bids import AskedBid, build_resumed_bid
from marketplace.api.market.bid_answers import place_and_answer
from marketplace.api.market.bid_serializers import BID_RESPONSES
from marketplace.api.market.job_serializers import (
    CancelPreviewSerializer,
    CheckpointSerializer,
    JobEventSerializer,
    JobSerializer,
    PausePreviewSerializer,
    PreparationSerializer,
    SamplesSerializer,
)
from marketplace.api.market.own_data import DeletionSerializer
from marketplace.api.market.owned import get_job, list_jobs
from marketplace.api.market.requests import CancelRequest, DisputeRequest, ResumeRequest, check_body
from marketplace.api.pagination import build_page, read_limit
from marketplace.api.views import AlwaysJson, MarketView
from marketplace.auction.bidding.resuming import find_paused_job
from marketplace.auction.cancelling import CancelQuote, cancel_sold_job, quote_cancelling
from marketplace.auction.models import Bid
from marketplace.auction.pausing import check_can_pause, pause_sold_job
from marketplace.auction.selectors import get_bid
from marketplace.common import clock
from marketplace.common.downloads import FileDownload
from marketplace.common.errors import NotFound, UserError
from marketplace.jobs.downloads import get_artifact, get_checkpoint, open_adapter, open_checkpoint
from marketplace.jobs.event_files import read_events
from marketplace.jobs.models import Job, JobStatus
from marketplace.jobs.selectors import list_job_checkpoints, list_samples
from marketplace.jobs.services import delete_adapter, delete_job
from marketplace.vendors.acceptance import accept, refuse_delivery
from marketplace.vendors.downloads import download_changes, download_origins
from marketplace.vendors.models import Preparation
from marketplace.vendors.selectors import find_preparation


class JobsView(MarketView):
    scopes = {"GET": "jobs:read"}
    queries = {"GET": schemas.build_work_page(JobStatus.values)}

    @extend_schema(
        operation_id="jobs_list",
        responses={200: page_of(JobSerializer)},
    )
    def get(self, request: Request) -> Response:
        jobs = list_jobs(get_caller(request).organisation)
        status = request.query_params.get("status")
        if status is not None:
            if status not in JobStatus.values:
                raise UserError(
                    "invalid_status",
                    f"A status is one of {', '.join(JobStatus.values)}.",
                    param="status",
                )
            jobs = jobs.filter(status=status)
        return Response(build_page(request, jobs, JobSerializer.show_each))


class JobView(MarketView):
    scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}

    @extend_schema(operation_id="jobs_read", responses={200: JobSerializer})
    def get(self, request: Request, job_id: str) -> Response:
        return Response(JobSerializer.show(get_job(get_caller(request).organisation, job_id)))

    @extend_schema(
        operation_id="jobs_delete", responses={202: DeletionSerializer, 409: schemas.PROBLEM}
    )
    def delete(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        job = get_job(who.organisation, job_id)
        deletion = delete_job(job=job, asked_by=who.user, now=clock.now())
        return Response(DeletionSerializer.show(deletion), status=202)


class JobEventsView(MarketView):
    """The job's history, oldest first; ``after`` is the ``seq`` of the last event seen."""

    scopes = {"GET": "jobs:read"}
    queries = {"GET": schemas.EVENTS_PAGE}

    @extend_schema(
        operation_id="jobs_events_list",
        responses={200: page_of(JobEventSerializer)},
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        after = request.query_params.get("after", "0")
        if not after.isascii() or not after.isdigit():
            raise UserError(
                "invalid_cursor", "'after' must be the seq of the last event seen.", param="after"
            )
        limit = read_limit(request)
        found = read_events(job, after_seq=int(after[:18]), most=limit + 1)
        data = JobEventSerializer.show_each(found[:limit])
        return Response({"data": data, "has_more": len(found) > limit})


class JobCheckpointsView(MarketView):
    scopes = {"GET": "jobs:read"}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="jobs_checkpoints_list",
        responses={200: page_of(CheckpointSerializer)},
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        found = list_job_checkpoints(job)
        return Response(build_page(request, found, CheckpointSerializer.show_each))


class JobCheckpointContentView(MarketView):
    """A stored checkpoint, whole or in part: adapter, optimizer, scheduler and data position."""

    content_negotiation_class = AlwaysJson
    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="jobs_checkpoint_content",
        responses={(200, "application/octet-stream"): schemas.FILE},
    )
    def get(self, request: Request, job_id: str, checkpoint_id: str) -> FileDownload:
        job = get_job(get_caller(request).organisation, job_id)
        found = get_checkpoint(job, checkpoint_id)
        return open_checkpoint(
            found, name=job.pk, range_header=request.headers.get("Range"), now=clock.now()
        )


class JobSamplesView(MarketView):
    """What the model writes on three held-out prompts, before and after training.

    Empty until the job has succeeded, and where no rows were held out.
    """

    scopes = {"GET": "jobs:read"}

    @extend_schema(responses={200: SamplesSerializer})
    def get(self, request: Request, job_id: str) -> Response:
        job = get_job(get_caller(request).organisation, job_id)
        return Response(SamplesSerializer.show(list_samples(job)))


class JobPreparationView(MarketView):
    """What a vendor made of the job's data: rows in and out, and how many changed, by reason."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(responses={200: PreparationSerializer})
    def get(self, request: Request, job_id: str) -> Response:
        return Response(PreparationSerializer.show(_get_preparation(request, job_id)))


class JobPreparationAcceptView(MarketView):
    """Accept a delivery that waits for its owner, also one that fails the rule; training starts."""

    scopes = {"POST": "jobs:write"}

    @extend_schema(request=None, responses={200: PreparationSerializer})
    def post(self, request: Request, job_id: str) -> Response:
        made = accept(preparation=_get_preparation(request, job_id), now=clock.now())
        return Response(PreparationSerializer.show(made))


class JobPreparationDisputeView(MarketView):
    """Refuse a delivery, with a reason; an operator decides.

    Of one with an ``objection`` nobody has to: the next vendor gets the work, or everything is
    refunded.
    """

    scopes = {"POST": "jobs:write"}

    @extend_schema(request=DisputeRequest, responses={200: PreparationSerializer})
    def post(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        refuse_delivery(
            preparation=_get_preparation(request, job_id),
            reason=check_body(DisputeRequest, request.data)["reason"],
            refused_by=who.user,
            now=clock.now(),
        )
        return Response(PreparationSerializer.show(_get_preparation(request, job_id)))


class JobPreparationChangesView(MarketView):
    """Every row that was changed or left out, with the reason, one JSON object a line."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(responses={(200, *schemas.build_file_types("application/jsonl")): schemas.FILE})
    def get(self, request: Request, job_id: str) -> FileDownload:
        job = get_job(get_caller(request).organisation, job_id)
        return download_changes(job=job, name=job.pk, range_header=request.headers.get("Range"))


class JobPreparationOriginsView(MarketView):
    """The place in your file of each prepared row, from 1, one JSON object a line."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(responses={(200, *schemas.build_file_types("application/jsonl")): schemas.FILE})
    def get(self, request: Request, job_id: str) -> FileDownload:
        job = get_job(get_caller(request).organisation, job_id)
        return download_origins(job=job, name=job.pk, range_header=request.headers.get("Range"))


def _get_preparation(request: Request, job_id: str) -> Preparation:
    preparation = find_preparation(get_job(get_caller(request).organisation, job_id))
    if preparation is None:
        raise NotFound("no_preparation", "The job's data were trained on as they are.")
    return preparation


class JobAdapterView(MarketView):
    """The finished adapter as a zip that ``peft`` reads once unpacked.

    Its weights and configuration were checked against the job. Tokenizer files and chat template
    are copies that the node made: load those of the base model where you do not trust its provider.
    """

    scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}

    @extend_schema(responses={(200, *schemas.build_file_types("application/zip")): schemas.FILE})
    def get(self, request: Request, job_id: str) -> FileDownload:
        job = get_job(get_caller(request).organisation, job_id)
        return open_adapter(
            get_artifact(job),
            name=job.pk,
            range_header=request.headers.get("Range"),
            now=clock.now(),
        )

    @extend_schema(
        operation_id="jobs_adapter_delete",
        responses={202: DeletionSerializer, 404: schemas.PROBLEM},
    )
    def delete(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        job = get_job(who.organisation, job_id)
        deletion = delete_adapter(job=job, asked_by=who.user, now=clock.now())
        return Response(DeletionSerializer.show(deletion), status=202)


class JobCancelView(MarketView):
    """End a job; what is left goes back at 98 % of its value. ``GET`` says the amounts."""

    scopes = {"GET": "jobs:read", "POST": "jobs:write"}
    # Both may search for a price.
    throttle_kind_of_reads = "quotes"
    throttle_kind = "cancels"

    @extend_schema(operation_id="jobs_cancel_preview", responses={200: CancelPreviewSerializer})
    def get(self, request: Request, job_id: str) -> Response:
        organisation = get_caller(request).organisation
        job = get_job(organisation, job_id)
        bid = get_bid(organisation, job.bid_id)
        return Response(CancelPreviewSerializer.show(self._preview(bid, job)))

    def _preview(self, bid: Bid, job: Job) -> dict[str, Any]:
        due = CancelQuote(0, 0, 0)
        if job.is_active:
            due = quote_cancelling(bid=bid, job=job, now=clock.now())
        return {"job": job, "bid": bid, "due": due}

    @extend_schema(
        operation_id="jobs_cancel", request=CancelRequest, responses={200: JobSerializer}
    )
    def post(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        job = cancel_sold_job(
            job=get_job(who.organisation, job_id),
            cancelled_by=who.user,
            now=clock.now(),
            at_least_micros=check_body(CancelRequest, request.data).get("refund_at_least"),
        )
        return Response(JobSerializer.show(job))


class JobPauseView(JobCancelView):
    """End a job for now; what is left goes back as by cancelling, and its last checkpoint stays.

    ``GET`` says the amounts and the step that a bid for ``resume:JOB`` goes on from.
    """

    @extend_schema(operation_id="jobs_pause_preview", responses={200: PausePreviewSerializer})
    def get(self, request: Request, job_id: str) -> Response:
        organisation = get_caller(request).organisation
        job = get_job(organisation, job_id)
        preview = self._preview(get_bid(organisation, job.bid_id), job)
        if job.is_active:
            check_can_pause(job)
        return Response(PausePreviewSerializer.show(preview))

    @extend_schema(operation_id="jobs_pause", request=CancelRequest, responses={200: JobSerializer})
    def post(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        job = pause_sold_job(
            job=get_job(who.organisation, job_id),
            paused_by=who.user,
            now=clock.now(),
            at_least_micros=check_body(CancelRequest, request.data).get("refund_at_least"),
        )
        return Response(JobSerializer.show(job))


class JobResumeView(MarketView):
    """Bid for the rest of a paused job; a new job goes on from its last checkpoint.

    ``POST /api/quotes`` with the model ``resume:JOB`` tells the price.
    """

    shares_thread = True
    takes_idempotency_key = True
    scopes = {"POST": "bids:write"}

    @extend_schema(operation_id="jobs_resume", request=ResumeRequest, responses=BID_RESPONSES)
    def post(self, request: Request, job_id: str) -> Coroutine[Any, Any, Response]:
        who, key = get_caller(request), read_idempotency_key(request)
        job = find_paused_job(job_id, organisation=who.organisation)
        body = build_resumed_bid(job, check_body(ResumeRequest, request.data), now=clock.now())
        return place_and_answer(AskedBid(body, who, key))
