"""``/api/nodes``: what a provider has on sale, for how much and when, and how it goes away."""

from __future__ import annotations

from datetime import datetime

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import page_of
from marketplace.api.callers import Caller, get_caller
from marketplace.api.idempotency import answer_once
from marketplace.api.market import schemas
from marketplace.api.market.node_requests import AskRequest, HoursRequest
from marketplace.api.market.node_serializers import (
    NodeRatesSerializer,
    OwnNodeSerializer,
    PostedRates,
    show_nodes,
)
from marketplace.api.market.requests import check_body
from marketplace.api.pagination import build_page
from marketplace.api.views import MarketView
from marketplace.auction.node_hours import change_sale_hours
from marketplace.auction.node_rates import load_node_rates
from marketplace.common import clock
from marketplace.common.errors import Conflict, MarketFault
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import find_ask_band, get_own_node
from marketplace.fleet.services import (
    ask_node_to_leave,
    drain_node,
    reset_node_speed,
    revoke_node_token,
    set_node_ask,
    undrain_node,
)

READ, WRITE = "provider:read", "provider:write"
_NODE = {200: OwnNodeSerializer, 404: schemas.PROBLEM, 409: schemas.PROBLEM}
_CHANGED = {400: schemas.PROBLEM, 403: schemas.PROBLEM, **_NODE}


def _answer(node: Node, *, now: datetime) -> Response:
    [shown] = show_nodes([node], now=now)
    return Response(shown)


def _find(who: Caller, node_id: str) -> Node:
    return get_own_node(who.organisation, node_id)


class NodesView(MarketView):
    """Your nodes, also those that have left."""

    scopes = {"GET": READ}
    queries = {"GET": schemas.NODES_PAGE}

    @extend_schema(
        operation_id="nodes_list",
        responses={200: page_of(OwnNodeSerializer, name="NodePage")},
    )
    def get(self, request: Request) -> Response:
        now, organisation = clock.now(), get_caller(request).organisation
        nodes = Node.objects.filter(provider__organisation=organisation).select_related("zone")
        return Response(build_page(request, nodes, lambda found: show_nodes(found, now=now)))


class NodeView(MarketView):
    """One of your nodes."""

    scopes = {"GET": READ}

    @extend_schema(
        operation_id="nodes_read", responses={200: OwnNodeSerializer, 404: schemas.PROBLEM}
    )
    def get(self, request: Request, node_id: str) -> Response:
        return _answer(_find(get_caller(request), node_id), now=clock.now())


class NodeAskView(MarketView):
    """Ask another price for a slot, from the next sale on. Slots that are sold keep theirs."""

    scopes = {"PUT": WRITE}
    throttle_kind = "acts"

    @extend_schema(operation_id="nodes_ask_set", request=AskRequest, responses=_CHANGED)
    def put(self, request: Request, node_id: str) -> Response:
        who, now = get_caller(request), clock.now()
        node = _find(who, node_id)
        ask_micros = check_body(AskRequest, request.data)["ask"]
        node = set_node_ask(node=node, ask_micros=ask_micros, set_by=who.user, now=now)
        return _answer(node, now=now)


class NodeHoursView(MarketView):
    """Change the hours of the day in which a node is sold, or plan its maintenance.

    What was sold outside them before is served.
    """

    scopes = {"PATCH": WRITE}
    throttle_kind = "acts"

    @extend_schema(operation_id="nodes_hours_change", request=HoursRequest, responses=_CHANGED)
    def patch(self, request: Request, node_id: str) -> Response:
        node, now = _find(get_caller(request), node_id), clock.now()
        change = check_body(HoursRequest, request.data)
        return _answer(change_sale_hours(node=node, change=change, now=now), now=now)


class NodeRatesView(MarketView):
    """What a node is paid by block of the day where rates are posted, and why it sells or not."""

    scopes = {"GET": READ}
    throttle_kind_of_reads = "quotes"

    @extend_schema(
        operation_id="nodes_rates",
        responses={200: NodeRatesSerializer, 404: schemas.PROBLEM, 409: schemas.PROBLEM},
    )
    def get(self, request: Request, node_id: str) -> Response:
        node = _find(get_caller(request), node_id)
        try:
            rates = load_node_rates(zone=node.zone, nodes=[node], now=clock.now())
        except MarketFault as error:
            raise Conflict(
                "rates_unknown", "Prices of this zone cannot be read now. Ask again later."
            ) from error
        found = PostedRates(node, rates[0] if rates else None, find_ask_band(node))
        return Response(NodeRatesSerializer.show(found))


class NodeActView(MarketView):
    """Something that is done to one of your nodes."""

    scopes = {"POST": WRITE}
    throttle_kind = "acts"
    takes_idempotency_key = True

    def act(self, node: Node, *, now: datetime) -> Node:
        raise LookupError("an act says what it does")

    def post(self, request: Request, node_id: str) -> Response:
        who, now = get_caller(request), clock.now()

        def work() -> Response:
            return _answer(self.act(_find(who, node_id), now=now), now=now)

        return answer_once(request, who.organisation, work, now=now)


@extend_schema_view(post=extend_schema("nodes_drain", request=None, responses=_NODE))
class NodeDrainView(NodeActView):
    """Sell nothing more of a node. What was sold is served; it stays until it is undrained."""

    def act(self, node: Node, *, now: datetime) -> Node:
        return drain_node(node=node, now=now)


@extend_schema_view(post=extend_schema("nodes_undrain", request=None, responses=_CHANGED))
class NodeUndrainView(NodeActView):
    """Put a drained node back on sale, also one that was withdrawn and has not left."""

    def act(self, node: Node, *, now: datetime) -> Node:
        return undrain_node(node=node, now=now)


@extend_schema_view(post=extend_schema("nodes_withdraw", request=None, responses=_NODE))
class NodeWithdrawView(NodeActView):
    """Drain a node and let it leave once what was sold is served; one that runs nothing, now."""

    def act(self, node: Node, *, now: datetime) -> Node:
        return ask_node_to_leave(node=node, now=now)


@extend_schema_view(post=extend_schema("nodes_revoke", request=None, responses=_NODE))
class NodeRevokeView(NodeActView):
    """End the credentials of a node at once. Its jobs go on elsewhere; it must join again."""

    def act(self, node: Node, *, now: datetime) -> Node:
        return revoke_node_token(node=node, now=now)


@extend_schema_view(post=extend_schema("nodes_speed_reset", request=None, responses=_NODE))
class NodeSpeedResetView(NodeActView):
    """Forget how fast a node's jobs were, as after a change of the machine."""

    def act(self, node: Node, *, now: datetime) -> Node:
        return reset_node_speed(node=node)
