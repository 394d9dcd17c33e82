"""``/api/wallet``, ``/api/nodes``, ``/api/earnings``: what an organisation has, offers, earns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, ConstantText, Moment, Usd, page_of, usd
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.pagination import build_page, read_limit
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.device_timeslices import Rest, find_rest
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import find_present_status
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_earnings, get_wallet, list_wallet_rows


class WalletSerializer(Answer):
    object = ConstantText("wallet")
    available = Usd(source="available_micros", help_text="What may be bid with.")
    held = Usd(source="held_micros", help_text="What undecided bids and unfinished exports hold.")


class WalletEntrySerializer(Answer):
    id = s.CharField(source="entry_id")
    cursor = s.IntegerField(help_text="What the next page begins after.")
    at = Moment(help_text="When it was booked.")
    kind = s.CharField(help_text="What was booked, as a word for programs.")
    reference = s.CharField(help_text="Such as a bid's id.")
    memo = s.CharField(help_text="The same in words.")
    available_change = Usd(
        source="available_change_micros", help_text="What it added to the money available."
    )
    held_change = Usd(source="held_change_micros", help_text="What it added to the money held.")
    available_after = Usd(source="available_after_micros", help_text="What was available after it.")


class _PresentNode(NamedTuple):
    node: Node
    status: str
    rest: Rest | None


class OwnNodeSerializer(Answer):
    id = s.CharField(source="node.id")
    object = ConstantText("node")
    name = s.CharField(source="node.name")
    zone = s.CharField(source="node.zone.name")
    gpu_type = s.CharField(source="node.gpu_type.name", help_text="Kind of GPU.")
    memory_gb = s.FloatField(source="node.memory_gb", help_text="Memory of the GPU, in GB.")
    ask = Usd(source="node.ask_micros", help_text="What you ask for a slot.")
    status = s.CharField(help_text="Whether it works, rests or is away.")
    available_from = Moment(
        source="node.available_from_at",
        allow_null=True,
        help_text="It is on sale from then on; null: from now on.",
    )
    available_until = Moment(
        source="node.available_until_at",
        allow_null=True,
        help_text="It is on sale until then; null: without end.",
    )
    shared_gpu = s.CharField(
        allow_null=True,
        help_text="Nodes with the same value take turns on a GPU, each in its hours.",
    )
    rests_until = Moment(
        source="rest.until_at",
        allow_null=True,
        help_text="Of a node that rests: when its hours begin.",
    )
    gpu_serves = s.CharField(
        source="rest.zone_name",
        allow_null=True,
        help_text="Of a node that rests: the zone that its GPU serves.",
    )
    last_heartbeat_at = Moment(
        source="node.last_heartbeat_at",
        allow_null=True,
        help_text="When it was last heard of; null: never.",
    )
    joined_at = Moment(source="node.joined_at", help_text="When it joined.")

    def get_shared_gpu(self, present: _PresentNode) -> str | None:
        device_id = present.node.shared_device_id
        return f"gpu_{device_id}" if device_id else None


def _show_nodes(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    now = clock.now()
    return OwnNodeSerializer.show_each(
        _PresentNode(node, find_present_status(node, now), find_rest(node, now=now))
        for node in nodes
    )


class EarningLineSerializer(Answer):
    # The price that its owner paid, and the bid, are not the provider's to know.
    id = s.CharField()
    kind = s.CharField(help_text="What was earned with.")
    amount = Usd(
        source="amount_micros", help_text="What was earned; below zero where it was taken back."
    )
    accrued_at = Moment(help_text="When it was earned.")
    payable_at = Moment(help_text="From then on it can be paid out.")
    payout_id = s.CharField(
        allow_null=True, help_text="The payout that it went with; null: none yet."
    )


class WalletView(MarketView):
    """What may be bid with, and what undecided bids hold."""

    scopes = {"GET": "wallet:read"}

    @extend_schema(operation_id="wallet_read", responses={200: WalletSerializer})
    def get(self, request: Request) -> Response:
        wallet = get_wallet(organisation=get_caller(request).organisation)
        return Response(WalletSerializer.show(wallet))


class WalletEntriesView(MarketView):
    """What happened to the wallet, newest first; ``after`` is the last entry's ``cursor``."""

    scopes = {"GET": "wallet:read"}
    queries = {
        "GET": [
            schemas.PAGE[0],
            OpenApiParameter("after", int, description="cursor of the last entry of the page."),
        ]
    }

    @extend_schema(
        operation_id="wallet_entries",
        responses={200: page_of(WalletEntrySerializer)},
    )
    def get(self, request: Request) -> Response:
        limit = read_limit(request)
        after = request.query_params.get("after")
        if after is not None and not (after.isascii() and after.isdigit()):
            raise UserError(
                "invalid_cursor", "'after' must be the cursor of the last entry.", param="after"
            )
        rows = list_wallet_rows(
            organisation=get_caller(request).organisation,
            limit=limit + 1,
            before=None if after is None else int(after[:18]),
        )
        data = WalletEntrySerializer.show_each(rows[:limit])
        return Response({"data": data, "has_more": len(rows) > limit})


class NodesView(MarketView):
    """The organisation's own nodes."""

    scopes = {"GET": "provider:read"}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="nodes_list",
        responses={200: page_of(OwnNodeSerializer, name="NodePage")},
    )
    def get(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        nodes = Node.objects.filter(provider__organisation=organisation)
        nodes = nodes.select_related("zone", "gpu_type")
        return Response(build_page(request, nodes, _show_nodes))


class EarningsView(MarketView):
    """What work earned, line by line, and what waits for a payout."""

    scopes = {"GET": "provider:read"}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="earnings_list",
        responses={
            200: page_of(
                EarningLineSerializer,
                name="EarningsPage",
                pending=Usd("What is earned and cannot be paid out yet."),
                payable=Usd("What can be paid out."),
            )
        },
    )
    def get(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        sums = get_earnings(organisation=organisation)
        lines = Earning.objects.filter(organisation=organisation)
        found = build_page(request, lines, EarningLineSerializer.show_each)
        totals = {"pending": usd(sums.pending_micros), "payable": usd(sums.payable_micros)}
        return Response(totals | found)
