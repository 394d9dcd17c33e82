"""``/api/datasets/<id>/plans``: what a preparation would do, shown before anything is sold."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.data_requests import PlanRequest
from marketplace.api.market.job_serializers import PlanSerializer
from marketplace.api.market.owned import get_dataset
from marketplace.api.market.requests import check_body
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.fleet.selectors import get_open_zone, list_open_zones
from marketplace.vendors.models import DataPlan
from marketplace.vendors.plans import confirm_plan, find_plan, request_plan
from marketplace.vendors.wishes import parse_wish


class DatasetPlansView(MarketView):
    """Have a plan made; it is there after a few seconds. The same settings are the same plan."""

    scopes = {"POST": "datasets:write"}

    @extend_schema(
        operation_id="plans_create",
        request=PlanRequest,
        responses={202: PlanSerializer, 400: schemas.PROBLEM},
    )
    def post(self, request: Request, dataset_id: str) -> Response:
        dataset = get_dataset(get_caller(request).organisation, dataset_id)
        asked = dict(check_body(PlanRequest, request.data))
        name = asked.pop("zone", None)
        zone = get_open_zone(name) if name else dataset.zone or list_open_zones()[0]
        wish = parse_wish(asked)
        plan = request_plan(dataset=dataset, zone=zone, wish=wish, now=clock.now())
        return Response(PlanSerializer.show(plan), status=202)


class DatasetPlanView(MarketView):
    """A plan: rows and tokens before and after each step, keys, examples, duplicates."""

    scopes = {"GET": "datasets:read"}

    @extend_schema(operation_id="plans_read", responses={200: PlanSerializer})
    def get(self, request: Request, dataset_id: str, plan_id: str) -> Response:
        return Response(PlanSerializer.show(_find(request, dataset_id, plan_id)))


class DatasetPlanConfirmView(MarketView):
    """Agree to a plan; a bid that names it is sold for the rows that stay."""

    scopes = {"POST": "datasets:write"}

    @extend_schema(
        operation_id="plans_confirm",
        request=None,
        responses={200: PlanSerializer, 409: schemas.PROBLEM},
    )
    def post(self, request: Request, dataset_id: str, plan_id: str) -> Response:
        plan = confirm_plan(
            plan=_find(request, dataset_id, plan_id),
            confirmed_by=get_caller(request).user,
            now=clock.now(),
        )
        return Response(PlanSerializer.show(plan))


def _find(request: Request, dataset_id: str, plan_id: str) -> DataPlan:
    dataset = get_dataset(get_caller(request).organisation, dataset_id)
    return find_plan(dataset=dataset, plan_id=plan_id)
