"""``/api/integrations``: the keys with which jobs' measurements are sent on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, ConstantText, Moment
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.requests import check_body
from marketplace.api.market.workspace_requests import MlflowKeyRequest, WandbKeyRequest
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.tracking.models import TrackingKey, TrackingService
from marketplace.tracking.services import (
    find_tracking_key,
    remove_tracking_key,
    set_tracking_key,
)
from marketplace.tracking.trackers import TRACKERS

READ, WRITE = "jobs:read", "jobs:write"


@dataclass(frozen=True, slots=True)
class _ShownKey:
    service: TrackingService
    key: TrackingKey | None


class TrackingSerializer(Answer):
    object = ConstantText("tracking")
    service = s.ChoiceField(TrackingService.values, help_text="Where measurements go.")
    is_available = s.BooleanField(help_text="Whether this market can send there.")
    has_key = s.BooleanField(help_text="Whether your organisation has given a key or a server.")
    address = s.CharField(
        allow_null=True,
        help_text="Your own server; null: the one that the market's operator chose.",
    )
    set_at = Moment(allow_null=True, help_text="When the key was given; null: there is none.")
    set_by = s.CharField(allow_null=True, help_text="Id of the user.")

    def get_is_available(self, shown: _ShownKey) -> bool:
        return TRACKERS[shown.service].is_installed()

    def get_has_key(self, shown: _ShownKey) -> bool:
        return shown.key is not None

    def get_address(self, shown: _ShownKey) -> str | None:
        return None if shown.key is None else shown.key.address or None

    def get_set_at(self, shown: _ShownKey) -> datetime | None:
        return None if shown.key is None else shown.key.set_at

    def get_set_by(self, shown: _ShownKey) -> str | None:
        return None if shown.key is None else str(shown.key.set_by_id)


class _ServiceView(MarketView):
    scopes = {"GET": READ, "PUT": WRITE, "DELETE": WRITE}
    service: ClassVar[TrackingService]
    asked: ClassVar[type[s.Serializer[Any]]]

    def get(self, request: Request) -> Response:
        key = find_tracking_key(get_caller(request).organisation, self.service)
        return Response(TrackingSerializer.show(_ShownKey(self.service, key)))

    @sensitive_variables("asked")
    def put(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(self.asked, request.data)
        set_tracking_key(
            organisation=who.organisation,
            service=self.service,
            set_by=who.user,
            now=clock.now(),
            **asked,
        )
        return self.get(request)

    def delete(self, request: Request) -> Response:
        remove_tracking_key(organisation=get_caller(request).organisation, service=self.service)
        return Response(status=204)


def _describe_operations(service: TrackingService, asked: type[s.Serializer[Any]]) -> Any:
    return extend_schema_view(
        get=extend_schema(operation_id=f"{service}_read", responses={200: TrackingSerializer}),
        put=extend_schema(
            operation_id=f"{service}_set",
            request=asked,
            responses={200: TrackingSerializer, 400: schemas.PROBLEM, 409: schemas.PROBLEM},
        ),
        delete=extend_schema(operation_id=f"{service}_remove", responses={204: None}),
    )


@_describe_operations(TrackingService.WANDB, WandbKeyRequest)
class WandbView(_ServiceView):
    """The key is stored encrypted, and never shown again. Nodes do not get it."""

    service, asked = TrackingService.WANDB, WandbKeyRequest


@_describe_operations(TrackingService.MLFLOW, MlflowKeyRequest)
class MlflowView(_ServiceView):
    """The key is stored encrypted, and never shown again. Nodes do not get it."""

    service, asked = TrackingService.MLFLOW, MlflowKeyRequest
