"""The shapes of wallets, nodes and earnings for the OpenAPI document."""

from __future__ import annotations

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers as s

from marketplace.api.market.schemas import page_of, usd_field

WALLET = inline_serializer(
    name="Wallet", fields={"object": s.CharField(), "available": usd_field(), "held": usd_field()}
)
WALLET_ENTRY_PAGE = page_of(
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
            "available_change": usd_field(),
            "held_change": usd_field(),
            "available_after": usd_field(),
        },
    ),
)
NODE_PAGE = page_of(
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
            "ask": usd_field(),
            "status": s.CharField(),
            "available_from": s.DateTimeField(allow_null=True),
            "available_until": s.DateTimeField(allow_null=True),
            "shared_gpu": s.CharField(
                allow_null=True,
                help_text="Nodes with the same value take turns on a GPU, each in its hours.",
            ),
            "rests_until": s.DateTimeField(
                allow_null=True, help_text="Of a node that rests: when its hours begin."
            ),
            "gpu_serves": s.CharField(
                allow_null=True, help_text="Of a node that rests: the zone that its GPU serves."
            ),
            "last_heartbeat_at": s.DateTimeField(allow_null=True),
            "joined_at": s.DateTimeField(),
        },
    ),
)
EARNINGS_PAGE = page_of(
    "EarningsPage",
    inline_serializer(
        name="EarningLine",
        fields={
            "id": s.CharField(),
            "kind": s.CharField(),
            "amount": usd_field(),
            "accrued_at": s.DateTimeField(),
            "payable_at": s.DateTimeField(),
            "payout_id": s.CharField(allow_null=True),
        },
    ),
    pending=usd_field(),
    payable=usd_field(),
)
