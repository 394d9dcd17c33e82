"""``/api/keys``: the organisation's API keys, without their secrets; replaced and revoked."""

from __future__ import annotations

from datetime import timedelta

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.api_keys import revoke_api_key, rotate_api_key
from marketplace.accounts.models import ApiKey
from marketplace.api.answers import GIVEN, Answer, ConstantText, Moment, Usd, page_of
from marketplace.api.callers import Caller, get_caller
from marketplace.api.market import schemas
from marketplace.api.market.requests import check_body
from marketplace.api.market.workspace_requests import KeyRotationRequest
from marketplace.api.pagination import build_page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.errors import NotAllowed, NotFound

READ, WRITE = "keys:read", "keys:write"


class KeySerializer(Answer):
    id = s.CharField()
    object = ConstantText("api_key")
    name = s.CharField(help_text="Name that people know it by.")
    prefix = s.CharField(help_text="What the secret begins with.")
    scopes = s.ListField(child=s.CharField(), help_text="What it may do.")
    bid_price = Usd(
        source="bid_price_micros",
        allow_null=True,
        help_text="What it bids where a request says nothing.",
    )
    bid_deadline_s = s.IntegerField(
        allow_null=True, help_text="Seconds from now that it bids by where a request says nothing."
    )
    created_at = Moment()
    expires_at = Moment(allow_null=True, help_text="When it ends; null: it does not.")
    earlier_secret_until = Moment(
        allow_null=True, help_text="Until then, the secret that was replaced may be used."
    )
    last_used_at = Moment(allow_null=True, help_text="To the minute.")


class KeyWithSecretSerializer(KeySerializer):
    secret = s.CharField(source=GIVEN, help_text="Shown once: ft_…")


class KeysView(MarketView):
    """Keys that may be used. New ones are made on the settings' page, by a person."""

    scopes = {"GET": READ}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="keys_list",
        responses={200: page_of(KeySerializer)},
    )
    def get(self, request: Request) -> Response:
        live = ApiKey.objects.filter(organisation=get_caller(request).organisation, revoked_at=None)
        live = live.exclude(expires_at__lte=clock.now())
        return Response(build_page(request, live, KeySerializer.show_each))


class KeyView(MarketView):
    scopes = {"DELETE": WRITE}

    @extend_schema(operation_id="keys_revoke", responses={204: None})
    def delete(self, request: Request, key_id: str) -> Response:
        who = get_caller(request)
        key = _find(who, key_id)
        revoke_api_key(
            organisation=who.organisation, key_id=key.pk, revoked_by=who.user, now=clock.now()
        )
        return Response(status=204)


class KeyRotationView(MarketView):
    """A new secret of a key. The earlier one may be used until the overlap is over.

    A key rotates itself only: with another's secret it would escape its own caps and expiry.
    """

    scopes = {"POST": WRITE}

    @extend_schema(
        operation_id="keys_rotate",
        request=KeyRotationRequest,
        responses={200: KeyWithSecretSerializer, 400: schemas.PROBLEM, 403: schemas.PROBLEM},
    )
    def post(self, request: Request, key_id: str) -> Response:
        who = get_caller(request)
        key = _find(who, key_id)
        if who.key is not None and key.pk != who.key.pk:
            raise NotAllowed("another_key", "A key rotates itself only. Use the settings.")
        asked = check_body(KeyRotationRequest, request.data)
        made, secret = rotate_api_key(
            organisation=who.organisation,
            key_id=key.pk,
            rotated_by=who.user,
            overlap=timedelta(seconds=asked["overlap_s"]),
            now=clock.now(),
        )
        return Response(KeyWithSecretSerializer.show(made, secret=secret))


def _find(who: Caller, key_id: str) -> ApiKey:
    """A key that the caller may end.

    Raises
    ------
    NotFound
        ``unknown_api_key``.
    NotAllowed
        ``missing_scope``: it may do what the caller's own may not.
    """
    keys = ApiKey.objects.filter(organisation=who.organisation)
    key = keys.filter(pk=key_id.replace("\0", "")).first()
    if key is None:
        raise NotFound("unknown_api_key", "You have no such key; GET /api/keys lists them.")
    if who.key is not None and not set(key.scopes) <= set(who.key.scopes):
        raise NotAllowed("missing_scope", "That key may do more than this one. Use the settings.")
    return key
