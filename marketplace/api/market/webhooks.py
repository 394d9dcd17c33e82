"""``/api/webhooks``: addresses that the market calls with events, and what was sent to them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market import webhook_schemas as shapes
from marketplace.api.market.fields import moment
from marketplace.api.market.requests import WebhookRequest, check_body
from marketplace.api.pagination import build_page, show_each
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.webhooks.models import WebhookEndpoint, WebhookMessage
from marketplace.webhooks.services import (
    create_endpoint,
    enable_endpoint,
    find_endpoint,
    replay_message,
    rotate_secret,
    send_test,
)

READ, WRITE = "webhooks:read", "webhooks:write"


class WebhooksView(MarketView):
    """Webhooks as the Standard Webhooks specification signs them. A secret is shown once."""

    scopes = {"GET": READ, "POST": WRITE}

    @extend_schema(
        operation_id="webhooks_list",
        parameters=schemas.PAGE[:2],
        responses={200: shapes.WEBHOOK_PAGE},
    )
    def get(self, request: Request) -> Response:
        endpoints = WebhookEndpoint.objects.filter(organisation=get_caller(request).organisation)
        return Response(build_page(request, endpoints, show_each(serialize_endpoint)))

    @extend_schema(
        operation_id="webhooks_create",
        request=WebhookRequest,
        responses={201: shapes.WEBHOOK_WITH_SECRET, 400: schemas.PROBLEM, 409: schemas.PROBLEM},
    )
    def post(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(WebhookRequest, request.data)
        endpoint, secret = create_endpoint(
            organisation=who.organisation,
            created_by=who.user,
            url=asked["url"],
            events=asked["events"],
            now=clock.now(),
        )
        headers = {"Location": f"/api/webhooks/{endpoint.pk}"}
        return Response(
            serialize_endpoint(endpoint) | {"secret": secret}, status=201, headers=headers
        )


class WebhookView(MarketView):
    scopes = {"GET": READ, "DELETE": WRITE}

    @extend_schema(operation_id="webhooks_read", responses={200: shapes.WEBHOOK})
    def get(self, request: Request, webhook_id: str) -> Response:
        return Response(serialize_endpoint(_find(request, webhook_id)))

    @extend_schema(operation_id="webhooks_delete", responses={204: None})
    def delete(self, request: Request, webhook_id: str) -> Response:
        _find(request, webhook_id).delete()
        return Response(status=204)


class WebhookRotateView(MarketView):
    """A new secret. For a day, messages are signed with the earlier one as well."""

    scopes = {"POST": WRITE}

    @extend_schema(
        operation_id="webhooks_rotate",
        request=None,
        responses={200: shapes.WEBHOOK_WITH_SECRET},
    )
    def post(self, request: Request, webhook_id: str) -> Response:
        endpoint = _find(request, webhook_id)
        secret = rotate_secret(endpoint=endpoint, now=clock.now())
        return Response(serialize_endpoint(endpoint) | {"secret": secret})


class WebhookEnableView(MarketView):
    """Send again to a webhook that was disabled."""

    scopes = {"POST": WRITE}

    @extend_schema(operation_id="webhooks_enable", request=None, responses={200: shapes.WEBHOOK})
    def post(self, request: Request, webhook_id: str) -> Response:
        endpoint = _find(request, webhook_id)
        enable_endpoint(endpoint=endpoint)
        return Response(serialize_endpoint(_find(request, webhook_id)))


class WebhookTestView(MarketView):
    """Send a message of the type ``webhook.test``."""

    scopes = {"POST": WRITE}

    @extend_schema(
        operation_id="webhooks_test",
        request=None,
        responses={202: shapes.DELIVERY, 409: schemas.PROBLEM},
    )
    def post(self, request: Request, webhook_id: str) -> Response:
        message = send_test(endpoint=_find(request, webhook_id), now=clock.now())
        return Response(serialize_delivery(message), status=202)


class DeliveriesView(MarketView):
    """What was sent to a webhook in the last 30 days, with every attempt, newest first."""

    scopes = {"GET": READ}

    @extend_schema(
        operation_id="webhooks_deliveries",
        parameters=schemas.PAGE[:2],
        responses={200: shapes.DELIVERY_PAGE},
    )
    def get(self, request: Request, webhook_id: str) -> Response:
        deliveries = _find(request, webhook_id).deliveries.all()
        return Response(build_page(request, deliveries, show_each(serialize_delivery)))


class DeliveryReplayView(MarketView):
    """Send a message again, under its id."""

    scopes = {"POST": WRITE}

    @extend_schema(
        operation_id="webhooks_replay",
        request=None,
        responses={202: shapes.DELIVERY, 409: schemas.PROBLEM},
    )
    def post(self, request: Request, webhook_id: str, delivery_id: str) -> Response:
        message = replay_message(
            endpoint=_find(request, webhook_id), message_id=delivery_id, now=clock.now()
        )
        return Response(serialize_delivery(message), status=202)


def _find(request: Request, webhook_id: str) -> WebhookEndpoint:
    return find_endpoint(get_caller(request).organisation, webhook_id)


def serialize_endpoint(endpoint: WebhookEndpoint) -> dict[str, Any]:
    return {
        "id": endpoint.pk,
        "object": "webhook",
        "url": endpoint.url,
        "events": endpoint.events,
        "created_at": moment(endpoint.created_at),
        "earlier_secret_until": moment(endpoint.earlier_secret_until),
        "disabled_at": moment(endpoint.disabled_at),
        "disabled_reason": endpoint.disabled_reason or None,
    }


def serialize_delivery(message: WebhookMessage) -> dict[str, Any]:
    return {
        "id": message.pk,
        "object": "webhook.delivery",
        "type": message.type,
        "status": message.status,
        "body": message.body,
        "created_at": moment(message.created_at),
        "due_at": moment(message.due_at) if message.status == "pending" else None,
        "attempts": message.log,
    }
