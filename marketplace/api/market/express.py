"""``/api/express``: prompt tuning within an SLO, answered at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import Organisation
from marketplace.api.callers import get_caller
from marketplace.api.idempotency import read_idempotency_key
from marketplace.api.market import express_schemas, schemas
from marketplace.api.market.fields import moment, usd
from marketplace.api.market.owned import get_dataset
from marketplace.api.market.requests import ExpressRequestBody, WorkRequest, check_body
from marketplace.api.views import MarketView
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.common import clock
from marketplace.express.models import ExpressRequest, LookupRecord, RequestStatus
from marketplace.express.requests import (
    ExpressOrder,
    get_request,
    measure_express_job,
    place_request,
    wait_for_answer,
)
from marketplace.fleet.selectors import get_open_zone
from marketplace.jobs.models import Job

#: SLOs that a quote prices, as multiples of the least.
QUOTED = (1.1, 1.5, 2.0, 3.0, 5.0, 8.0)


class ExpressQuotesView(MarketView):
    """What a prompt-tuning job costs by SLO; reserves nothing."""

    scopes = {"POST": "bids:read"}
    throttle_kind = "quotes"

    @extend_schema(
        request=WorkRequest,
        responses={200: express_schemas.EXPRESS_QUOTE, 400: schemas.PROBLEM},
    )
    def post(self, request: Request) -> Response:
        asked = check_body(WorkRequest, request.data)
        job = _read_job(asked, get_caller(request).organisation)
        terms = measure_express_job(job, now=clock.now())
        slos = [terms.least_slo_s * factor for factor in QUOTED]
        return Response(
            {
                "zone": asked["zone"],
                "least_slo_s": terms.least_slo_s,
                "longest_slo_s": terms.lane.slo_max_s,
                "prices": [
                    {"slo_s": slo_s, "price": usd(terms.price_micros(slo_s))}
                    for slo_s in slos
                    if slo_s <= terms.lane.slo_max_s
                ],
            }
        )


class ExpressRequestsView(MarketView):
    """Ask for an SLO: 201 with a certificate, 200 with a later SLO or a no, 202 to look again."""

    scopes = {"POST": "bids:write"}

    @extend_schema(
        request=ExpressRequestBody,
        responses={
            200: express_schemas.EXPRESS_ANSWER,
            201: express_schemas.EXPRESS_ANSWER,
            202: express_schemas.EXPRESS_ANSWER,
            400: schemas.PROBLEM,
        },
    )
    def post(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(ExpressRequestBody, request.data)
        job, key = _read_job(asked, who.organisation), read_idempotency_key(request)
        order = ExpressOrder(
            job=job,
            name=asked["name"] or job.dataset.name[:64],
            slo_s=asked["slo_s"],
            placed_by=who.user,
            api_key_id=who.key_id,
            idempotency_key=None if key is None else f"api-{key}",
        )
        found = wait_for_answer(place_request(order, now=clock.now()))
        statuses = {RequestStatus.ADMITTED: 201, RequestStatus.PENDING: 202}
        return Response(
            serialize_express(found),
            status=statuses.get(RequestStatus(found.status), 200),
            headers={"Location": f"/api/express/{found.pk}"},
        )


def _read_job(asked: dict[str, Any], organisation: Organisation) -> JobRequest:
    dataset = get_dataset(organisation, asked["dataset_id"])
    return JobRequest(
        organisation,
        get_open_zone(asked["zone"]),
        dataset,
        asked["adapter"],
        asked["training"],
        verified_only=asked["verified_only"],
    )


class ExpressRequestView(MarketView):
    scopes = {"GET": "bids:read"}

    @extend_schema(operation_id="express_read", responses={200: express_schemas.EXPRESS_ANSWER})
    def get(self, request: Request, request_id: str) -> Response:
        return Response(
            serialize_express(get_request(get_caller(request).organisation, request_id))
        )


def serialize_express(asked: ExpressRequest) -> dict[str, Any]:
    """A request with the lane's answer."""
    answer = asked.answer or {}
    job = Job.objects.filter(bid_id=asked.bid_id).first() if asked.bid_id else None
    due_s = answer.get("slo_s")
    return {
        "id": asked.pk,
        "object": "express_request",
        "status": asked.status,
        "zone": asked.zone.name,
        "dataset_id": asked.dataset_id,
        "name": asked.name,
        "slo_s": asked.slo_s,
        "adapter": asked.adapter,
        "training": asked.training,
        "created_at": moment(asked.created_at),
        "answered_at": moment(asked.answered_at),
        "certified_slo_s": due_s,
        "due_at": None if due_s is None else moment(asked.created_at + timedelta(seconds=due_s)),
        "price": usd(answer.get("price_micros")),
        "seats": None if not asked.bid_id else len(answer.get("seats", ("",))),
        "least_slo_s": answer.get("least_slo_s"),
        "reason": answer.get("answer"),
        "position": asked.position,
        "decision_hash": asked.decision_hash or None,
        "bid_id": asked.bid_id or None,
        "job_id": None if job is None else job.pk,
        "lookup": None if job is None else _serialize_lookup(job),
    }


def _serialize_lookup(job: Job) -> dict[str, Any] | None:
    """What the search for a known prompt found; noted a moment after the job has ended."""
    found = LookupRecord.objects.filter(pk=job.pk, lookup__isnull=False).first()
    if found is None:
        return None
    return {
        "candidates": found.lookup["candidates"],
        "seconds": found.lookup["seconds"],
        "own_loss": found.lookup["own_score"],
        "loss": found.lookup["score"],
        "is_from_bank": found.started_from_id is not None,
    }
