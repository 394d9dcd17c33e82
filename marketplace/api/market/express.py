"""``/api/express``: prompt tuning within an SLO, answered at once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import Organisation
from marketplace.api.answers import GIVEN, Answer, AsStored, Constant, Moment, NullText, Usd, usd
from marketplace.api.callers import get_caller
from marketplace.api.idempotency import read_idempotency_key
from marketplace.api.market import schemas
from marketplace.api.market.owned import find_dataset
from marketplace.api.market.requests import ExpressRequestBody, WorkRequest, check_body
from marketplace.api.views import MarketView
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.terms import name_after
from marketplace.common import clock
from marketplace.express.models import ExpressRequest, LookupRecord, RequestStatus
from marketplace.express.requests import (
    ExpressOrder,
    ExpressTerms,
    get_request,
    measure_express_job,
    place_request,
    wait_for_answer,
)
from marketplace.fleet.selectors import get_open_zone
from marketplace.jobs.models import Job

#: SLOs that a quote prices, as multiples of the least.
QUOTED = (1.1, 1.5, 2.0, 3.0, 5.0, 8.0)


class ExpressPriceSerializer(AsStored):
    slo_s = s.FloatField(help_text="Seconds in which it is done.")
    price = Usd(help_text="What that costs.")


class ExpressQuoteSerializer(Answer):
    zone = s.CharField(source=GIVEN)
    least_slo_s = s.FloatField(help_text="The shortest SLO that idle seats keep.")
    longest_slo_s = s.FloatField(source="lane.slo_max_s", help_text="The longest SLO that is sold.")
    prices = ExpressPriceSerializer(many=True, help_text="Prices of some SLOs between them.")

    def get_prices(self, terms: ExpressTerms) -> list[dict[str, Any]]:
        slos = [terms.least_slo_s * factor for factor in QUOTED]
        return [
            {"slo_s": slo_s, "price": usd(terms.price_micros(slo_s))}
            for slo_s in slos
            if slo_s <= terms.lane.slo_max_s
        ]


class ExpressLookupSerializer(AsStored):
    candidates = s.IntegerField(help_text="Known prompts that were tried.")
    seconds = s.FloatField(help_text="Seconds that it took.")
    own_loss = s.FloatField(help_text="With the prompt asked for.")
    loss = s.FloatField(help_text="With the prompt that the job began with.")
    is_from_bank = s.BooleanField(help_text="Whether the job began with a known prompt.")


class ExpressAnswerSerializer(Answer):
    id = s.CharField()
    object = Constant("express_request")
    status = s.ChoiceField(
        ["pending", "admitted", "offered", "refused"],
        help_text="offered: not by the SLO asked for, but by a later one; nothing is held for it.",
    )
    zone = s.CharField(source="zone.name")
    dataset_id = s.CharField()
    name = s.CharField()
    slo_s = s.FloatField(help_text="As asked for.")
    adapter = s.DictField()
    training = s.DictField()
    created_at = Moment()
    answered_at = Moment(allow_null=True, help_text="When it was answered; null: it is not.")
    certified_slo_s = s.FloatField(
        source="answer.slo_s",
        allow_null=True,
        help_text="Certified, or of an offer: what could be.",
    )
    due_at = Moment(
        allow_null=True, help_text="When it is to be done by the SLO certified; null: none is."
    )
    price = Usd(
        source="answer.price_micros", allow_null=True, help_text="What it pays, or would pay."
    )
    seats = s.IntegerField(allow_null=True, help_text="Of one node, that the job has.")
    least_slo_s = s.FloatField(
        source="answer.least_slo_s",
        allow_null=True,
        help_text="The shortest SLO that idle seats kept then.",
    )
    reason = s.CharField(
        source="answer.answer",
        allow_null=True,
        help_text="What the lane answered, as a word for programs; null until then.",
    )
    position = s.IntegerField(allow_null=True, help_text="Of the answer in the zone's log.")
    decision_hash = NullText(help_text="Hash of the answer's entry in the log.")
    bid_id = NullText()
    job_id = s.CharField(allow_null=True)
    lookup = ExpressLookupSerializer(
        allow_null=True,
        help_text="What the search for a known prompt found; null: nothing, or none was made.",
    )

    def get_due_at(self, asked: ExpressRequest) -> datetime | None:
        due_s = (asked.answer or {}).get("slo_s")
        return None if due_s is None else asked.created_at + timedelta(seconds=due_s)

    def get_seats(self, asked: ExpressRequest) -> int | None:
        return len((asked.answer or {}).get("seats", ("",))) if asked.bid_id else None

    def get_job_id(self, asked: ExpressRequest) -> str | None:
        jobs = Job.objects.filter(bid_id=asked.bid_id) if asked.bid_id else Job.objects.none()
        return jobs.values_list("pk", flat=True).first()

    def get_lookup(self, asked: ExpressRequest) -> dict[str, Any] | None:
        """What the search for a known prompt found; noted a moment after the job has ended."""
        found = LookupRecord.objects.filter(pk=self.get_job_id(asked), lookup__isnull=False).first()
        if found is None:
            return None
        return {
            "candidates": found.lookup["candidates"],
            "seconds": found.lookup["seconds"],
            "own_loss": found.lookup["own_score"],
            "loss": found.lookup["score"],
            "is_from_bank": found.started_from_id is not None,
        }


class ExpressQuotesView(MarketView):
    """What a prompt-tuning job costs by SLO; reserves nothing."""

    scopes = {"POST": "bids:read"}
    throttle_kind = "quotes"

    @extend_schema(
        request=WorkRequest,
        responses={200: ExpressQuoteSerializer, 400: schemas.PROBLEM},
    )
    def post(self, request: Request) -> Response:
        asked = check_body(WorkRequest, request.data)
        job = _read_job(asked, get_caller(request).organisation)
        terms = measure_express_job(job, now=clock.now())
        return Response(ExpressQuoteSerializer.show(terms, zone=asked["zone"]))


class ExpressRequestsView(MarketView):
    """Ask for an SLO: 201 with a certificate, 200 with a later SLO or a no, 202 to look again."""

    takes_idempotency_key = True
    scopes = {"POST": "bids:write"}

    @extend_schema(
        request=ExpressRequestBody,
        responses={
            200: ExpressAnswerSerializer,
            201: ExpressAnswerSerializer,
            202: ExpressAnswerSerializer,
            400: schemas.PROBLEM,
        },
    )
    def post(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(ExpressRequestBody, request.data)
        job, key = _read_job(asked, who.organisation), read_idempotency_key(request)
        order = ExpressOrder(
            job=job,
            name=asked["name"] or name_after(job.dataset.name),
            slo_s=asked["slo_s"],
            placed_by=who.user,
            api_key_id=who.key_id,
            idempotency_key=None if key is None else f"api-{key}",
        )
        found = wait_for_answer(place_request(order, now=clock.now()))
        statuses = {RequestStatus.ADMITTED: 201, RequestStatus.PENDING: 202}
        return Response(
            ExpressAnswerSerializer.show(found),
            status=statuses.get(RequestStatus(found.status), 200),
            headers={"Location": f"/api/express/{found.pk}"},
        )


def _read_job(asked: dict[str, Any], organisation: Organisation) -> JobRequest:
    dataset = find_dataset(organisation, asked["dataset_id"])
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

    @extend_schema(operation_id="express_read", responses={200: ExpressAnswerSerializer})
    def get(self, request: Request, request_id: str) -> Response:
        found = get_request(get_caller(request).organisation, request_id)
        return Response(ExpressAnswerSerializer.show(found))
