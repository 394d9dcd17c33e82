"""``/api/webhooks``: addresses that the market calls with events, and what was sent to them."""

from __future__ import annotations

from datetime import datetime

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import GIVEN, Answer, AsStored, ConstantText, Moment, NullText, page_of
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.requests import check_body
from marketplace.api.market.workspace_requests import WebhookRequest
from marketplace.api.pagination import build_page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.webhooks.models import MessageForm, MessageStatus, WebhookEndpoint, WebhookMessage
from marketplace.webhooks.services import (
    create_endpoint,
    enable_endpoint,
    find_endpoint,
    replay_message,
    rotate_secret,
    send_test,
)

READ, WRITE = "webhooks:read", "webhooks:write"


class WebhookSerializer(Answer):
    id = s.CharField()
    object = ConstantText("webhook")
    url = s.CharField(help_text="Where events are sent.")
    form = s.ChoiceField(
        MessageForm.values, help_text="Who reads it: a program, or a channel of Slack or Teams."
    )
    events = s.ListField(child=s.CharField(), help_text="Types of events that are sent.")
    created_at = Moment()
    earlier_secret_until = Moment(
        allow_null=True, help_text="Until then, messages are signed with the earlier one too."
    )
    disabled_at = Moment(allow_null=True, help_text="Nothing is sent since then.")
    disabled_reason = NullText(help_text="Why nothing is sent; null: it is.")


class WebhookWithSecretSerializer(WebhookSerializer):
    secret = s.CharField(source=GIVEN, help_text="Shown once: whsec_…")


class DeliveryAttemptSerializer(AsStored):
    at = s.DateTimeField(help_text="When it was tried.")
    status = s.IntegerField(
        allow_null=True, help_text="HTTP status of the answer; null: there was none."
    )
    error = s.CharField(help_text="What went wrong; empty: nothing.")
    took_s = s.FloatField(help_text="Seconds until the answer.")


class WebhookDeliverySerializer(Answer):
    id = s.CharField(help_text="The webhook-id of every attempt.")
    object = ConstantText("webhook.delivery")
    type = s.CharField(help_text="Type of the event.")
    status = s.ChoiceField(
        MessageStatus.values, help_text="pending: it is tried again; otherwise how it ended."
    )
    body = s.CharField(help_text="As it was signed and sent.")
    created_at = Moment(help_text="When the event happened.")
    due_at = Moment(allow_null=True, help_text="Of the next attempt.")
    attempts = DeliveryAttemptSerializer(
        source="log", many=True, help_text="What was tried, the first one first."
    )

    def get_due_at(self, message: WebhookMessage) -> datetime | None:
        return message.due_at if message.status == MessageStatus.PENDING else None


class WebhooksView(MarketView):
    """Webhooks as the Standard Webhooks specification signs them. A secret is shown once."""

    scopes = {"GET": READ, "POST": WRITE}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="webhooks_list",
        responses={200: page_of(WebhookSerializer)},
    )
    def get(self, request: Request) -> Response:
        endpoints = WebhookEndpoint.objects.filter(organisation=get_caller(request).organisation)
        return Response(build_page(request, endpoints, WebhookSerializer.show_each))

    @extend_schema(
        operation_id="webhooks_create",
        request=WebhookRequest,
        responses={201: WebhookWithSecretSerializer, 400: schemas.PROBLEM, 409: schemas.PROBLEM},
    )
    def post(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(WebhookRequest, request.data)
        endpoint, secret = create_endpoint(
            organisation=who.organisation,
            created_by=who.user,
            url=asked["url"],
            form=MessageForm(asked["form"]),
            events=asked["events"],
            now=clock.now(),
        )
        headers = {"Location": f"/api/webhooks/{endpoint.pk}"}
        body = WebhookWithSecretSerializer.show(endpoint, secret=secret)
        return Response(body, status=201, headers=headers)


class WebhookView(MarketView):
    scopes = {"GET": READ, "DELETE": WRITE}

    @extend_schema(operation_id="webhooks_read", responses={200: WebhookSerializer})
    def get(self, request: Request, webhook_id: str) -> Response:
        return Response(WebhookSerializer.show(_find(request, webhook_id)))

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
        responses={200: WebhookWithSecretSerializer},
    )
    def post(self, request: Request, webhook_id: str) -> Response:
        endpoint = _find(request, webhook_id)
        secret = rotate_secret(endpoint=endpoint, now=clock.now())
        return Response(WebhookWithSecretSerializer.show(endpoint, secret=secret))


class WebhookEnableView(MarketView):
    """Send again to a webhook that was disabled."""

    scopes = {"POST": WRITE}

    @extend_schema(operation_id="webhooks_enable", request=None, responses={200: WebhookSerializer})
    def post(self, request: Request, webhook_id: str) -> Response:
        endpoint = _find(request, webhook_id)
        enable_endpoint(endpoint=endpoint)
        return Response(WebhookSerializer.show(_find(request, webhook_id)))


class WebhookTestView(MarketView):
    """Send a message of the type ``webhook.test``."""

    scopes = {"POST": WRITE}

    @extend_schema(
        operation_id="webhooks_test",
        request=None,
        responses={202: WebhookDeliverySerializer, 409: schemas.PROBLEM},
    )
    def post(self, request: Request, webhook_id: str) -> Response:
        message = send_test(endpoint=_find(request, webhook_id), now=clock.now())
        return Response(WebhookDeliverySerializer.show(message), status=202)


class DeliveriesView(MarketView):
    """What was sent to a webhook in the last 30 days, with every attempt, newest first."""

    scopes = {"GET": READ}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="webhooks_deliveries",
        responses={200: page_of(WebhookDeliverySerializer)},
    )
    def get(self, request: Request, webhook_id: str) -> Response:
        deliveries = _find(request, webhook_id).deliveries.all()
        return Response(build_page(request, deliveries, WebhookDeliverySerializer.show_each))


class DeliveryReplayView(MarketView):
    """Send a message again, under its id."""

    scopes = {"POST": WRITE}

    @extend_schema(
        operation_id="webhooks_replay",
        request=None,
        responses={202: WebhookDeliverySerializer, 409: schemas.PROBLEM},
    )
    def post(self, request: Request, webhook_id: str, delivery_id: str) -> Response:
        message = replay_message(
            endpoint=_find(request, webhook_id), message_id=delivery_id, now=clock.now()
        )
        return Response(WebhookDeliverySerializer.show(message), status=202)


def _find(request: Request, webhook_id: str) -> WebhookEndpoint:
    return find_endpoint(get_caller(request).organisation, webhook_id)
