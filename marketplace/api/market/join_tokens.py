"""``/api/join-tokens``: what a machine joins with; the secret is shown once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import page_of
from marketplace.api.callers import Caller, get_caller
from marketplace.api.idempotency import answer_once
from marketplace.api.market import schemas
from marketplace.api.market.node_requests import JoinTokenRequest
from marketplace.api.market.node_serializers import (
    InstallWaySerializer,
    JoiningMachineSerializer,
    JoinProgressSerializer,
    JoinTokenSerializer,
    JoinTokenWithSecretSerializer,
    PresentToken,
)
from marketplace.api.market.requests import check_body
from marketplace.api.pagination import build_page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.fleet.install_ways import list_install_ways
from marketplace.fleet.join_progress import find_token_status, list_joining_machines
from marketplace.fleet.models import JoinToken
from marketplace.fleet.selectors import get_open_zone, get_own_join_token
from marketplace.fleet.services import ListingTerms, open_listing, revoke_join_token

READ, WRITE = "provider:read", "provider:write"


def _stand(token: JoinToken, *, now: datetime) -> PresentToken:
    return PresentToken(token, find_token_status(token, now=now))


class JoinTokensView(MarketView):
    """Rights to list a machine, for a day. A secret is shown once."""

    scopes = {"GET": READ, "POST": WRITE}
    queries = {"GET": schemas.PAGE}
    throttle_kind = "acts"
    takes_idempotency_key = True

    @extend_schema(operation_id="join_tokens_list", responses={200: page_of(JoinTokenSerializer)})
    def get(self, request: Request) -> Response:
        now, organisation = clock.now(), get_caller(request).organisation
        tokens = JoinToken.objects.filter(provider__organisation=organisation)

        def show(found: Sequence[JoinToken]) -> list[dict[str, Any]]:
            return JoinTokenSerializer.show_each(_stand(token, now=now) for token in found)

        return Response(build_page(request, tokens.select_related("zone"), show))

    @extend_schema(
        operation_id="join_tokens_create",
        request=JoinTokenRequest,
        responses={
            201: JoinTokenWithSecretSerializer,
            400: schemas.PROBLEM,
            403: schemas.PROBLEM,
            404: schemas.PROBLEM,
            409: schemas.PROBLEM,
        },
    )
    def post(self, request: Request) -> Response:
        who, now = get_caller(request), clock.now()
        return answer_once(
            request,
            who.organisation,
            lambda: _open(who, check_body(JoinTokenRequest, request.data), now=now),
            now=now,
            is_secret=True,
        )


@sensitive_variables("secret")
def _open(who: Caller, asked: dict[str, Any], *, now: datetime) -> Response:
    token, secret = open_listing(
        organisation=who.organisation,
        zone=get_open_zone(asked["zone"]),
        created_by=who.user,
        terms=ListingTerms(
            ask_micros=asked["ask"],
            tier=asked["tier"],
            available_until_at=asked.get("available_until"),
            opens=asked.get("opens"),
            closes=asked.get("closes"),
            is_shared=asked["is_shared"],
        ),
        nodes=asked["nodes"],
        now=now,
    )
    ways = list_install_ways(token, secret, is_shared=asked["is_shared"])
    body = JoinTokenWithSecretSerializer.show(
        _stand(token, now=now), secret=secret, commands=InstallWaySerializer.show_each(ways)
    )
    return Response(body, status=201, headers={"Location": f"/api/join-tokens/{token.pk}"})


class JoinTokenView(MarketView):
    scopes = {"GET": READ, "DELETE": WRITE}
    throttle_kind = "acts"

    @extend_schema(
        operation_id="join_tokens_read",
        responses={200: JoinProgressSerializer, 404: schemas.PROBLEM},
    )
    def get(self, request: Request, token_id: str) -> Response:
        token = get_own_join_token(get_caller(request).organisation, token_id)
        machines = JoiningMachineSerializer.show_each(list_joining_machines(token))
        return Response(
            JoinProgressSerializer.show(_stand(token, now=clock.now()), machines=machines)
        )

    @extend_schema(operation_id="join_tokens_revoke", responses={204: None, 404: schemas.PROBLEM})
    def delete(self, request: Request, token_id: str) -> Response:
        token = get_own_join_token(get_caller(request).organisation, token_id)
        revoke_join_token(token=token, now=clock.now())
        return Response(status=204)
