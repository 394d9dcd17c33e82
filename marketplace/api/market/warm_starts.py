"""``/api/warm-starts`` and consents of data sets and adapters: who may begin with which adapter."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, ConstantText, Moment, Usd, page_of, usd
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.owned import get_dataset, get_job
from marketplace.api.market.requests import check_body
from marketplace.api.market.workspace_requests import (
    AdapterConsentRequest,
    ConsentRequest,
    DatasetConsentRequest,
)
from marketplace.api.pagination import build_page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.warm.consents import set_adapter_consent, set_consent, set_dataset_consent
from marketplace.warm.selectors import (
    get_consent,
    get_dataset_consent,
    get_donor,
    list_royalties,
    sum_royalties,
)

READ, WRITE = "jobs:read", "jobs:write"
_CHANGED = {400: schemas.PROBLEM, 404: schemas.PROBLEM}
_INHERITED = "null: as your organisation."


class ConsentSerializer(Answer):
    object = ConstantText("warm_start_consent")
    uses_donors = s.BooleanField(help_text="Your jobs may begin with adapters of others.")
    gives_adapters = s.BooleanField(
        help_text="Jobs of others may begin with your adapters, for a royalty."
    )
    changed_at = Moment(allow_null=True, help_text="When it was last set; null: never.")


class DatasetConsentSerializer(Answer):
    object = ConstantText("dataset_consent")
    dataset_id = s.CharField()
    uses_donors = s.BooleanField(
        allow_null=True, help_text=f"Jobs on it may begin with adapters of others; {_INHERITED}"
    )
    gives_adapters = s.BooleanField(
        allow_null=True, help_text=f"Jobs of others may begin with its adapters; {_INHERITED}"
    )


class AdapterConsentSerializer(Answer):
    object = ConstantText("adapter_consent")
    job_id = s.CharField()
    is_given = s.BooleanField(allow_null=True, help_text="What you said; null: as its data set.")
    is_offered = s.BooleanField(
        help_text="Whether jobs of others may begin with it now: it is given, and fit for it."
    )
    has_memorised = s.BooleanField(
        help_text="It says rows of its data by heart: it is not offered to others."
    )
    builds_on_others = s.BooleanField(
        help_text="It came of somebody else's adapter: it is not offered to others."
    )
    did_harm = s.BooleanField(
        help_text="Starts of several organisations fell behind with it: it is not offered."
    )


class RoyaltySerializer(Answer):
    # Whose job began with it is not the giver's to know.
    id = s.CharField(source="pk")
    job_id = s.CharField(source="donor.job_id", help_text="Your job, whose adapter it was.")
    adapter = s.CharField(source="donor.job.name", help_text="Name of that job.")
    royalty = Usd(source="royalty_paid_micros", help_text="What you got for it.")
    ended_at = Moment(source="measured_at", help_text="When the job that began with it ended.")


class ConsentView(MarketView):
    """What an organisation allows of warm starts."""

    scopes = {"GET": READ, "PUT": WRITE}

    @extend_schema(operation_id="warm_start_consent_read", responses={200: ConsentSerializer})
    def get(self, request: Request) -> Response:
        """What your organisation allows of warm starts, where nothing else is said."""
        consent = get_consent(get_caller(request).organisation)
        return Response(ConsentSerializer.show(consent))

    @extend_schema(
        operation_id="warm_start_consent_set",
        request=ConsentRequest,
        responses={200: ConsentSerializer, 400: schemas.PROBLEM},
    )
    def put(self, request: Request) -> Response:
        """Say what your organisation allows of warm starts, where nothing else is said.

        A withdrawal ends offers at once; a job that was sold one and has not begun does without it.
        """
        organisation = get_caller(request).organisation
        said = check_body(ConsentRequest, request.data)
        consent = set_consent(organisation=organisation, now=clock.now(), **said)
        return Response(ConsentSerializer.show(consent))


class DatasetConsentView(MarketView):
    """What a data set allows of warm starts."""

    scopes = {"GET": READ, "PUT": WRITE}

    @extend_schema(
        operation_id="dataset_consent_read",
        responses={200: DatasetConsentSerializer, 404: schemas.PROBLEM},
    )
    def get(self, request: Request, dataset_id: str) -> Response:
        """What a data set allows otherwise than your organisation does."""
        dataset = get_dataset(get_caller(request).organisation, dataset_id)
        return Response(DatasetConsentSerializer.show(get_dataset_consent(dataset)))

    @extend_schema(
        operation_id="dataset_consent_set",
        request=DatasetConsentRequest,
        responses={200: DatasetConsentSerializer, **_CHANGED},
    )
    def put(self, request: Request, dataset_id: str) -> Response:
        """Say what a data set allows otherwise than your organisation does.

        A withdrawal ends offers at once; a job that was sold one and has not begun does without it.
        """
        dataset = get_dataset(get_caller(request).organisation, dataset_id)
        said = check_body(DatasetConsentRequest, request.data)
        consent = set_dataset_consent(dataset=dataset, now=clock.now(), **said)
        return Response(DatasetConsentSerializer.show(consent))


class AdapterConsentView(MarketView):
    """Whether an adapter is given to others' jobs."""

    scopes = {"GET": READ, "PUT": WRITE}

    @extend_schema(
        operation_id="adapter_consent_read",
        responses={200: AdapterConsentSerializer, 404: schemas.PROBLEM},
    )
    def get(self, request: Request, job_id: str) -> Response:
        """Whether others' jobs may begin with an adapter, and what keeps it from them."""
        job = get_job(get_caller(request).organisation, job_id)
        return Response(AdapterConsentSerializer.show(get_donor(job)))

    @extend_schema(
        operation_id="adapter_consent_set",
        request=AdapterConsentRequest,
        responses={200: AdapterConsentSerializer, **_CHANGED},
    )
    def put(self, request: Request, job_id: str) -> Response:
        """Give a finished adapter to others' jobs for a royalty, or withdraw it.

        A withdrawal ends offers at once; a job that was sold one and has not begun does without it.
        """
        organisation = get_caller(request).organisation
        job = get_job(organisation, job_id)
        said = check_body(AdapterConsentRequest, request.data)
        set_adapter_consent(organisation=organisation, job_id=job.pk, now=clock.now(), **said)
        return Response(AdapterConsentSerializer.show(get_donor(job)))


class RoyaltiesView(MarketView):
    """What jobs of others that began with your adapters paid you, the latest first."""

    scopes = {"GET": "wallet:read"}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="royalties_list",
        responses={
            200: page_of(
                RoyaltySerializer,
                name="RoyaltyPage",
                total=Usd("All that your adapters earned."),
            )
        },
    )
    def get(self, request: Request) -> Response:
        paid = list_royalties(get_caller(request).organisation)
        page = build_page(request, paid, RoyaltySerializer.show_each)
        return Response({"total": usd(sum_royalties(paid))} | page)
