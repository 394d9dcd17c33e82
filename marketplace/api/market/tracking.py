"""``/api/integrations/wandb``: the key with which jobs' measurements are sent on."""

from __future__ import annotations

from typing import Any

from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import Organisation
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.fields import moment
from marketplace.api.market.requests import TrackingKeyRequest, check_body
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.tracking.services import (
    find_tracking_key,
    is_installed,
    remove_tracking_key,
    set_tracking_key,
)

READ, WRITE = "jobs:read", "jobs:write"
_TRACKING = schemas.shape(
    "Tracking",
    {
        "object": s.CharField(),
        "is_available": s.BooleanField(help_text="Whether this market can send."),
        "has_key": s.BooleanField(help_text="Whether your organisation has given a key."),
        "set_at": s.DateTimeField(allow_null=True),
        "set_by": s.CharField(allow_null=True, help_text="Id of the user."),
    },
)


class TrackingView(MarketView):
    """The key is stored encrypted, and never shown again. Nodes do not get it."""

    scopes = {"GET": READ, "PUT": WRITE, "DELETE": WRITE}

    @extend_schema(operation_id="tracking_read", responses={200: _TRACKING})
    def get(self, request: Request) -> Response:
        return Response(_show(get_caller(request).organisation))

    @sensitive_variables("asked")
    @extend_schema(
        operation_id="tracking_set",
        request=TrackingKeyRequest,
        responses={200: _TRACKING, 400: schemas.PROBLEM, 409: schemas.PROBLEM},
    )
    def put(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(TrackingKeyRequest, request.data)
        set_tracking_key(
            organisation=who.organisation, key=asked["key"], set_by=who.user, now=clock.now()
        )
        return Response(_show(who.organisation))

    @extend_schema(operation_id="tracking_remove", responses={204: None})
    def delete(self, request: Request) -> Response:
        remove_tracking_key(organisation=get_caller(request).organisation)
        return Response(status=204)


def _show(organisation: Organisation) -> dict[str, Any]:
    key = find_tracking_key(organisation)
    return {
        "object": "tracking",
        "is_available": is_installed(),
        "has_key": key is not None,
        "set_at": None if key is None else moment(key.set_at),
        "set_by": None if key is None else str(key.set_by_id),
    }
