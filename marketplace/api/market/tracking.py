"""``/api/integrations/wandb``: the key with which jobs' measurements are sent on."""

from __future__ import annotations

from datetime import datetime

from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, ConstantText, Moment
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.requests import TrackingKeyRequest, check_body
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.tracking.models import TrackingKey
from marketplace.tracking.services import (
    find_tracking_key,
    is_installed,
    remove_tracking_key,
    set_tracking_key,
)

READ, WRITE = "jobs:read", "jobs:write"


class TrackingSerializer(Answer):
    object = ConstantText("tracking")
    is_available = s.BooleanField(help_text="Whether this market can send.")
    has_key = s.BooleanField(help_text="Whether your organisation has given a key.")
    set_at = Moment(allow_null=True, help_text="When the key was given; null: there is none.")
    set_by = s.CharField(allow_null=True, help_text="Id of the user.")

    def get_is_available(self, key: TrackingKey | None) -> bool:
        return is_installed()

    def get_has_key(self, key: TrackingKey | None) -> bool:
        return key is not None

    def get_set_at(self, key: TrackingKey | None) -> datetime | None:
        return None if key is None else key.set_at

    def get_set_by(self, key: TrackingKey | None) -> str | None:
        return None if key is None else str(key.set_by_id)


class TrackingView(MarketView):
    """The key is stored encrypted, and never shown again. Nodes do not get it."""

    scopes = {"GET": READ, "PUT": WRITE, "DELETE": WRITE}

    @extend_schema(operation_id="tracking_read", responses={200: TrackingSerializer})
    def get(self, request: Request) -> Response:
        return Response(
            TrackingSerializer.show(find_tracking_key(get_caller(request).organisation))
        )

    @sensitive_variables("asked")
    @extend_schema(
        operation_id="tracking_set",
        request=TrackingKeyRequest,
        responses={200: TrackingSerializer, 400: schemas.PROBLEM, 409: schemas.PROBLEM},
    )
    def put(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(TrackingKeyRequest, request.data)
        set_tracking_key(
            organisation=who.organisation, key=asked["key"], set_by=who.user, now=clock.now()
        )
        return Response(TrackingSerializer.show(find_tracking_key(who.organisation)))

    @extend_schema(operation_id="tracking_remove", responses={204: None})
    def delete(self, request: Request) -> Response:
        remove_tracking_key(organisation=get_caller(request).organisation)
        return Response(status=204)
