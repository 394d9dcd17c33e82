"""``/v1/fine_tuning/jobs``: bid for a job, follow it, end it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import Organisation
from marketplace.api.callers import Caller, get_caller
from marketplace.api.idempotency import answer_once, find_shared_key
from marketplace.api.market.asked_bids import (
    AskedBid,
    FilesNotReadError,
    build_resumed_bid,
    find_new_bids,
    read_files,
)
from marketplace.api.market.bid_serializers import serialize_bids
from marketplace.api.market.owned import get_job, list_jobs
from marketplace.api.market.requests import check_body
from marketplace.api.models import FineTuningRequest
from marketplace.api.openai import schemas
from marketplace.api.openai.job_events import (
    EVENT_ID_PATTERN,
    FineTuningJobEventSerializer,
    list_job_log,
)
from marketplace.api.openai.job_serializers import (
    FineTuningJobCheckpointSerializer,
    FineTuningJobSerializer,
    serialize_checkpoints,
    serialize_jobs,
)
from marketplace.api.openai.lists import build_list, read_after
from marketplace.api.openai.names import JOB
from marketplace.api.openai.requests import FineTuningJobRequest, FineTuningResumeRequest
from marketplace.api.openai.schemas import list_of
from marketplace.api.openai.terms import FineTuningTerms, resolve_request
from marketplace.api.openai.views import OpenAiView
from marketplace.api.pagination import read_limit
from marketplace.api.problems import build_problem
from marketplace.auction.bidding.place import NewBid, place_bid
from marketplace.auction.bidding.refusals import REFUSAL_CODES, describe_bid_refusal
from marketplace.auction.bidding.resuming import find_paused_job, list_resuming_bids
from marketplace.auction.bidding.wait import wait_for_bid
from marketplace.auction.cancelling import cancel_sold_job
from marketplace.auction.models import Bid, BidStatus
from marketplace.auction.pausing import pause_sold_job
from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.jobs.models import Job
from marketplace.jobs.selectors import list_job_checkpoints
from marketplace.tracking.models import TrackingService
from marketplace.tracking.services import track_bid
from scheduler.types import Refusal

#: How long a request waits for its bid to be decided: there is no job before that.
DECIDED_WITHIN_S = 20.0
JOBS_LIMIT, EVENTS_LIMIT, CHECKPOINTS_LIMIT = 20, 20, 10
LIMIT_MAX = 100
_METADATA = re.compile(r"metadata\[(.{1,64})\]", re.DOTALL)


class FineTuningJobsView(OpenAiView):
    takes_idempotency_key = True
    scopes = {"GET": "jobs:read", "POST": "bids:write"}

    @extend_schema(
        operation_id="list_fine_tuning_jobs",
        parameters=schemas.JOBS_PAGE,
        responses={
            200: list_of(FineTuningJobSerializer, "ListPaginatedFineTuningJobsResponse"),
            **schemas.ERRORS,
        },
    )
    def get(self, request: Request) -> Response:
        limit = read_limit(request, default=JOBS_LIMIT, most=LIMIT_MAX)
        organisation = get_caller(request).organisation
        jobs = _filter_by_metadata(
            list_jobs(organisation).select_related("zone", "organisation"),
            organisation,
            dict(request.query_params.items()),
        )
        after = read_after(request)
        if after is not None:
            jobs = jobs.filter(pk__lt=JOB + after)
        found = list(jobs.order_by("-pk")[: limit + 1])
        return Response(build_list(found, limit=limit, show=serialize_jobs))

    @extend_schema(
        operation_id="create_fine_tuning_job",
        request=FineTuningJobRequest,
        responses={200: FineTuningJobSerializer, **schemas.ERRORS, 402: schemas.ERROR},
    )
    def post(self, request: Request) -> Response:
        who, now = get_caller(request), clock.now()
        key = find_shared_key(request, who.organisation, now=now)
        return answer_once(
            request, who.organisation, lambda: _create(request, who, key, now), now=now, key=key
        )


class FineTuningJobView(OpenAiView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="retrieve_fine_tuning_job",
        responses={200: FineTuningJobSerializer, **schemas.ERRORS},
    )
    def get(self, request: Request, job_id: str) -> Response:
        return Response(_show(get_job(get_caller(request).organisation, job_id)))


class FineTuningJobCancelView(OpenAiView):
    scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="cancel_fine_tuning_job",
        request=None,
        responses={200: FineTuningJobSerializer, **schemas.ERRORS},
    )
    def post(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        job = get_job(who.organisation, job_id)
        return Response(_show(cancel_sold_job(job=job, cancelled_by=who.user, now=clock.now())))


class FineTuningJobPauseView(OpenAiView):
    """End a job for now; what is left goes back as by cancelling, and its last checkpoint stays."""

    scopes = {"POST": "jobs:write"}
    throttle_kind = "cancels"

    @extend_schema(
        operation_id="pause_fine_tuning_job",
        request=None,
        responses={200: FineTuningJobSerializer, **schemas.ERRORS},
    )
    def post(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        job = get_job(who.organisation, job_id)
        return Response(_show(pause_sold_job(job=job, paused_by=who.user, now=clock.now())))


class FineTuningJobResumeView(OpenAiView):
    """Bid for the rest of a paused job, and answer with the new job that goes on with it.

    Without ``bid`` it is bid what the first bid leaves, by the paused job's deadline, or once that
    has passed by the latest on sale. The answer's ``resumed_from`` names the paused job.
    """

    takes_idempotency_key = True
    scopes = {"POST": "bids:write"}

    @extend_schema(
        operation_id="resume_fine_tuning_job",
        request=FineTuningResumeRequest,
        responses={200: FineTuningJobSerializer, **schemas.ERRORS, 402: schemas.ERROR},
    )
    def post(self, request: Request, job_id: str) -> Response:
        who, now = get_caller(request), clock.now()
        key = find_shared_key(request, who.organisation, now=now)
        return answer_once(
            request,
            who.organisation,
            lambda: _resume(request, job_id, who, key, now),
            now=now,
            key=key,
        )


class FineTuningJobEventsView(OpenAiView):
    """What happened to a job and what was measured, newest first."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="list_fine_tuning_events",
        parameters=schemas.page_after(f"^{EVENT_ID_PATTERN}$"),
        responses={
            200: list_of(FineTuningJobEventSerializer, "ListFineTuningJobEventsResponse"),
            **schemas.ERRORS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        limit = read_limit(request, default=EVENTS_LIMIT, most=LIMIT_MAX)
        job = get_job(get_caller(request).organisation, job_id)
        found = list_job_log(job, after=request.query_params.get("after"), limit=limit + 1)
        return Response(build_list(found, limit=limit, show=FineTuningJobEventSerializer.show_each))


class FineTuningJobCheckpointsView(OpenAiView):
    """The checkpoints that a job would continue from, newest first."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="list_fine_tuning_job_checkpoints",
        parameters=schemas.PAGE,
        responses={
            200: list_of(
                FineTuningJobCheckpointSerializer,
                "ListFineTuningJobCheckpointsResponse",
                has_ends=True,
            ),
            **schemas.ERRORS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        limit = read_limit(request, default=CHECKPOINTS_LIMIT, most=LIMIT_MAX)
        job = get_job(get_caller(request).organisation, job_id)
        rows, after = list_job_checkpoints(job), read_after(request)
        if after is not None:
            rows = rows.filter(pk__lt=f"ckpt_{after}")
        found = list(rows.order_by("-pk")[: limit + 1])
        return Response(
            build_list(
                found,
                limit=limit,
                show=lambda some: serialize_checkpoints(job, some),
                has_ends=True,
            )
        )


def _show(job: Job) -> dict[str, Any]:
    return serialize_jobs([job])[0]


def _filter_by_metadata(
    jobs: QuerySet[Job], organisation: Organisation, query: Mapping[str, Any]
) -> QuerySet[Job]:
    """Jobs with the pairs that ``metadata[key]=value`` names; ``metadata=null``: with none."""
    pairs = {
        found[1]: value for name, value in query.items() if (found := _METADATA.fullmatch(name))
    }
    with_metadata = FineTuningRequest.objects.filter(organisation=organisation)
    if query.get("metadata") == "null":
        some = with_metadata.filter(metadata__isnull=False)
        return jobs.exclude(bid_id__in=some.values("bid_id"))
    if not pairs:
        return jobs
    # PostgreSQL's JSON holds no NUL, so nothing matches one.
    if any("\0" in text for pair in pairs.items() for text in pair):
        return jobs.none()
    return jobs.filter(bid_id__in=with_metadata.filter(metadata__contains=pairs).values("bid_id"))


def _resume(request: Request, job_id: str, who: Caller, key: str, now: datetime) -> Response:
    """Bid for the rest of a paused job; resuming one twice answers with the same job."""
    paused = find_paused_job(get_job(who.organisation, job_id).pk, organisation=who.organisation)
    bid = list_resuming_bids(paused.pk).first()
    if bid is None:
        own = check_body(FineTuningResumeRequest, request.data).get("bid") or {}
        asked = {"price": own.get("max_price"), "deadline": own.get("deadline")}
        bid = _place(build_resumed_bid(paused, asked, now=now), who, key)
        first = FineTuningRequest.objects.filter(bid_id=paused.bid_id).first()
        if first is not None:
            # Named and described as the job that it goes on with.
            first.pk, first.bid_id = None, bid.pk
            first.save(force_insert=True)
            _track(bid, first.integrations)
    return _answer_decided(bid)


def _create(request: Request, who: Caller, key: str, now: datetime) -> Response:
    """Bid for the job that is asked for, and answer with it once the bid is decided."""
    asked = check_body(FineTuningJobRequest, request.data)
    bid = _find_bid(who.organisation, key)
    if bid is None:
        terms = resolve_request(asked, who=who, now=now)
        bid = _place(terms.bid, who, key)
        _remember(bid, asked, terms)
    return _answer_decided(bid)


def _answer_decided(bid: Bid) -> Response:
    """The job that a bid won, once it is decided, or why it did not."""
    bid = wait_for_bid(bid=bid, timeout_s=DECIDED_WITHIN_S)
    if bid.status == BidStatus.PENDING:
        raise UserError(
            "bid_not_decided",
            f"The bid {bid.pk} is not decided yet. Send the same request again in a moment, or "
            f"look at /api/bids/{bid.pk}.",
            status=503,
            extra={"retry": True, "bid_id": bid.pk},
        )
    job = Job.objects.filter(bid_id=bid.pk).select_related("zone", "organisation").first()
    if job is None:
        return _build_refusal(bid)
    return Response(_show(job))


def _find_bid(organisation: Organisation, key: str) -> Bid | None:
    """The bid of an earlier request under the key, if its process died before it answered."""
    return Bid.objects.filter(organisation=organisation, idempotency_key=_bid_key(key)).first()


def _bid_key(key: str) -> str:
    return f"v1:{key}"[:255]


def _place(body: Mapping[str, Any], who: Caller, key: str) -> Bid:
    asked = AskedBid(body, who, _bid_key(key))
    [found] = find_new_bids([asked])
    if isinstance(found, FilesNotReadError):
        read_files(found.new_bid)
        found = found.new_bid
    if not isinstance(found, NewBid):
        raise found
    return place_bid(asked=found, now=clock.now())


def _remember(bid: Bid, asked: Mapping[str, Any], terms: FineTuningTerms) -> None:
    FineTuningRequest.objects.get_or_create(
        bid_id=bid.pk,
        defaults={
            "organisation_id": bid.organisation_id,
            "suffix": asked.get("suffix") or "",
            "metadata": asked.get("metadata"),
            "method": terms.method,
            "hyperparameters": terms.hyperparameters,
            "integrations": asked.get("integrations") or [],
        },
    )
    _track(bid, asked.get("integrations") or [])


def _track(bid: Bid, integrations: Sequence[Mapping[str, Any]]) -> None:
    for integration in integrations:
        service = TrackingService(integration["type"])
        run = integration[service.value]
        track_bid(
            bid_id=bid.pk,
            organisation_id=bid.organisation_id,
            service=service,
            project=run.get("project") or run["experiment"],
            entity=run.get("entity") or "",
            name=run.get("name") or "",
            tags=run.get("tags") or [],
            now=clock.now(),
        )


def _build_refusal(bid: Bid) -> Response:
    """402 with what would have won; the answer is kept, since the bid was decided."""
    if bid.status != BidStatus.REFUSED:
        raise NotFound("bid_cancelled", f"The bid {bid.pk} was taken back; there is no job.")
    [value] = serialize_bids([bid])
    decision = value["decision"]
    return build_problem(
        code=REFUSAL_CODES[Refusal(bid.refusal)],
        detail=describe_bid_refusal(bid),
        status=402,
        param="bid",
        extra={
            "reason": bid.refusal,
            "posted_price": decision["posted_price"],
            "earliest_deadline": decision["earliest_deadline"],
            "earliest_deadline_price": decision["earliest_deadline_price"],
            "bid": value,
        },
    )
