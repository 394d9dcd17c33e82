"""What the gateway made since a moment, with what a market needs to write a lost row again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from marketplace.payments.stripe_client import (
    Listed,
    call_gateway,
    get_client,
    read_id,
    read_row_name,
)
from marketplace.payments.stripe_gateway import LEDGER_CURRENCY

if TYPE_CHECKING:
    import stripe


@dataclass(frozen=True, slots=True)
class MadeIntent:
    """A PaymentIntent, as its request named our row."""

    gateway_id: str
    payment_id: str
    organisation_id: str
    customer_id: str
    key: str
    purpose: str
    #: Stripe's word, such as ``requires_capture``.
    status: str
    amount_cents: int
    saves_card: bool
    made_at: datetime


@dataclass(frozen=True, slots=True)
class MadeRefund:
    """A refund, as its request named our row."""

    gateway_id: str
    refund_id: str
    intent_id: str
    reference: str
    amount_cents: int
    has_failed: bool
    made_at: datetime


@dataclass(frozen=True, slots=True)
class MadeTransfer:
    """A transfer to an earner's account, as its request named our rows."""

    gateway_id: str
    transfer_id: str
    payout_id: str
    organisation_id: str
    account_id: str
    group: str
    #: Of a dollar.
    amount_cents: int
    currency: str
    #: In ``currency``.
    settled_cents: int
    made_at: datetime


def list_intents(*, since: datetime) -> list[MadeIntent]:
    """Those that name a payment of a market, the earliest first."""
    return [
        MadeIntent(
            gateway_id=found.id,
            payment_id=read_row_name(found),
            organisation_id=read_row_name(found, "organisation"),
            customer_id=read_id(found.customer),
            key=read_row_name(found, "key"),
            purpose=read_row_name(found, "purpose"),
            status=found.status,
            amount_cents=found.amount,
            saves_card=bool(found.setup_future_usage),
            made_at=_read_moment(found),
        )
        for found in _list_since(since, lambda asked: get_client().v1.payment_intents.list(asked))
        if read_row_name(found, "key")
    ]


def list_refunds(*, since: datetime) -> list[MadeRefund]:
    """Those that name a refund of a market, the earliest first."""
    return [
        MadeRefund(
            gateway_id=found.id,
            refund_id=read_row_name(found),
            intent_id=read_id(found.payment_intent),
            reference=read_row_name(found, "reference"),
            amount_cents=found.amount,
            has_failed=found.status in ("failed", "canceled"),
            made_at=_read_moment(found),
        )
        for found in _list_since(since, lambda asked: get_client().v1.refunds.list(asked))
        if read_row_name(found, "reference")
    ]


def list_transfers(*, since: datetime) -> list[MadeTransfer]:
    """Those that name a transfer of a market, the earliest first."""
    return [
        MadeTransfer(
            gateway_id=found.id,
            transfer_id=read_row_name(found),
            payout_id=read_row_name(found, "payout"),
            organisation_id=read_row_name(found, "organisation"),
            account_id=read_id(found.destination),
            group=found.transfer_group or "",
            amount_cents=int(read_row_name(found, "cents")),
            currency=found.currency or LEDGER_CURRENCY,
            settled_cents=found.amount,
            made_at=_read_moment(found),
        )
        for found in _list_since(since, lambda asked: get_client().v1.transfers.list(asked))
        if read_row_name(found, "payout")
    ]


def _list_since(since: datetime, start: Callable[[Any], stripe.ListObject[Listed]]) -> list[Listed]:
    asked = {"created": {"gte": int(since.timestamp())}, "limit": 100}
    return call_gateway(lambda: list(start(asked).auto_paging_iter()))[::-1]


def _read_moment(found: Any) -> datetime:
    return datetime.fromtimestamp(found.created, UTC)
