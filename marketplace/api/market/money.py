"""``/api/wallet``, ``/api/nodes``, ``/api/earnings``: what an organisation has, offers, earns."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import get_caller
from marketplace.api.market import money_schemas as shapes
from marketplace.api.market import schemas
from marketplace.api.market.fields import moment, usd
from marketplace.api.pagination import build_page, read_page_limit, show_each
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import find_present_status
from marketplace.fleet.turns import find_rest
from marketplace.payments.models import Earning
from marketplace.payments.selectors import StatementRow, get_earnings, get_wallet, list_wallet_rows


class WalletView(MarketView):
    """What may be bid with, and what undecided bids hold."""

    scopes = {"GET": "wallet:read"}

    @extend_schema(operation_id="wallet_read", responses={200: shapes.WALLET})
    def get(self, request: Request) -> Response:
        wallet = get_wallet(organisation=get_caller(request).organisation)
        return Response(
            {
                "object": "wallet",
                "available": usd(wallet.available_micros),
                "held": usd(wallet.held_micros),
            }
        )


class WalletEntriesView(MarketView):
    """What happened to the wallet, newest first; ``after`` is the last entry's ``cursor``."""

    scopes = {"GET": "wallet:read"}

    @extend_schema(
        operation_id="wallet_entries",
        parameters=[
            schemas.PAGE[0],
            OpenApiParameter("after", int, description="cursor of the last entry of the page."),
        ],
        responses={200: shapes.WALLET_ENTRY_PAGE},
    )
    def get(self, request: Request) -> Response:
        limit = read_page_limit(request)
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
        data = [serialize_entry(row) for row in rows[:limit]]
        return Response({"data": data, "has_more": len(rows) > limit})


class NodesView(MarketView):
    """The organisation's own nodes."""

    scopes = {"GET": "provider:read"}

    @extend_schema(
        operation_id="nodes_list", parameters=schemas.PAGE[:2], responses={200: shapes.NODE_PAGE}
    )
    def get(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        nodes = Node.objects.filter(provider__organisation=organisation)
        nodes = nodes.select_related("zone", "gpu_type")
        return Response(build_page(request, nodes, show_each(serialize_node)))


class EarningsView(MarketView):
    """What work earned, line by line, and what waits for a payout."""

    scopes = {"GET": "provider:read"}

    @extend_schema(
        operation_id="earnings_list",
        parameters=schemas.PAGE[:2],
        responses={200: shapes.EARNINGS_PAGE},
    )
    def get(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        sums = get_earnings(organisation=organisation)
        lines = Earning.objects.filter(organisation=organisation)
        found = build_page(request, lines, show_each(serialize_earning))
        totals = {"pending": usd(sums.pending_micros), "payable": usd(sums.payable_micros)}
        return Response(totals | found)


def serialize_entry(row: StatementRow) -> dict[str, Any]:
    return {
        "id": row.entry_id,
        "cursor": row.cursor,
        "at": moment(row.at),
        "kind": row.kind,
        "reference": row.reference,
        "memo": row.memo,
        "available_change": usd(row.available_change_micros),
        "held_change": usd(row.held_change_micros),
        "available_after": usd(row.available_after_micros),
    }


def serialize_node(node: Node) -> dict[str, Any]:
    now = clock.now()
    rest = find_rest(node, now=now)
    return {
        "id": node.pk,
        "object": "node",
        "name": node.name,
        "zone": node.zone.name,
        "gpu_type": node.gpu_type.name,
        "memory_gb": node.memory_gb,
        "ask": usd(node.ask_micros),
        "status": find_present_status(node, now),
        "available_from": moment(node.available_from_at),
        "available_until": moment(node.available_until_at),
        "shared_gpu": node.shared_device_id and f"gpu_{node.shared_device_id}",
        "rests_until": None if rest is None else moment(rest.until_at),
        "gpu_serves": None if rest is None else rest.zone_name,
        "last_heartbeat_at": moment(node.last_heartbeat_at),
        "joined_at": moment(node.joined_at),
    }


def serialize_earning(line: Earning) -> dict[str, Any]:
    """A line of earnings: the price that its owner paid, and the bid, are not the provider's."""
    return {
        "id": line.pk,
        "kind": line.kind,
        "amount": usd(line.amount_micros),
        "accrued_at": moment(line.accrued_at),
        "payable_at": moment(line.payable_at),
        "payout_id": line.payout_id,
    }
