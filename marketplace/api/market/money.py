"""``/api/wallet``: what an organisation has, and what happened to it."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, ConstantText, Moment, Usd, page_of
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.pagination import read_limit, read_number
from marketplace.api.views import MarketView
from marketplace.payments.selectors import get_wallet, list_wallet_rows


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
            OpenApiParameter(
                "after", schemas.CURSOR, description="cursor of the last entry of the page."
            ),
        ]
    }

    @extend_schema(
        operation_id="wallet_entries",
        responses={200: page_of(WalletEntrySerializer)},
    )
    def get(self, request: Request) -> Response:
        limit = read_limit(request)
        rows = list_wallet_rows(
            organisation=get_caller(request).organisation,
            limit=limit + 1,
            before=read_number(request, "after"),
        )
        data = WalletEntrySerializer.show_each(rows[:limit])
        return Response({"data": data, "has_more": len(rows) > limit})
