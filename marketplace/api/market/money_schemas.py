"""The shapes of wallets, nodes and earnings for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers as s


def _usd(**options: Any) -> s.CharField:
    return s.CharField(help_text="Dollars as a decimal string.", **options)


def _page(name: str, item: Any, **more: s.Field) -> Any:
    fields = {"data": s.ListField(child=item), "has_more": s.BooleanField(), **more}
    return inline_serializer(name=name, fields=fields)


WALLET = inline_serializer(
    name="Wallet", fields={"object": s.CharField(), "available": _usd(), "held": _usd()}
)
WALLET_ENTRY_PAGE = _page(
    "WalletEntryPage",
    inline_serializer(
        name="WalletEntry",
        fields={
            "id": s.CharField(),
            "cursor": s.IntegerField(),
            "at": s.DateTimeField(),
            "kind": s.CharField(),
            "reference": s.CharField(help_text="Such as a bid's id."),
            "memo": s.CharField(),
            "available_change": _usd(),
            "held_change": _usd(),
            "available_after": _usd(),
        },
    ),
)
NODE_PAGE = _page(
    "NodePage",
    inline_serializer(
        name="OwnNode",
        fields={
            "id": s.CharField(),
            "object": s.CharField(),
            "name": s.CharField(),
            "zone": s.CharField(),
            "gpu_type": s.CharField(),
            "memory_gb": s.FloatField(),
            "ask": _usd(),
            "status": s.CharField(),
            "available_from": s.DateTimeField(allow_null=True),
            "available_until": s.DateTimeField(allow_null=True),
            "last_heartbeat_at": s.DateTimeField(allow_null=True),
            "joined_at": s.DateTimeField(),
        },
    ),
)
EARNINGS_PAGE = _page(
    "EarningsPage",
    inline_serializer(
        name="EarningLine",
        fields={
            "id": s.CharField(),
            "kind": s.CharField(),
            "amount": _usd(),
            "accrued_at": s.DateTimeField(),
            "payable_at": s.DateTimeField(),
            "payout_id": s.CharField(allow_null=True),
        },
    ),
    pending=_usd(),
    payable=_usd(),
)
