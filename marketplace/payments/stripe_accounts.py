"""Payouts at the gateway: accounts of those who earn, transfers to them, payouts to their banks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from marketplace.payments.stripe_client import (
    OUR_ROW,
    call_gateway,
    find_named,
    get_client,
    name_row,
    read_row_name,
)
from marketplace.payments.stripe_gateway import LEDGER_CURRENCY

if TYPE_CHECKING:
    import stripe


@dataclass(frozen=True, slots=True)
class AccountState:
    """A connected account as it is now."""

    gateway_id: str
    #: It can be paid, and can pay its bank.
    is_ready: bool
    #: What is still to be said about it.
    needs: tuple[str, ...]
    #: What it settles in.
    currency: str


@dataclass(frozen=True, slots=True)
class PayoutState:
    """A payout to a bank as it is now."""

    gateway_id: str
    #: Stripe's word: ``paid``, ``pending``, ``in_transit``, ``failed`` or ``canceled``.
    status: str
    failure: str
    #: Our name for the attempt.
    payout_id: str
    #: In the account's currency.
    amount_cents: int


def create_account(*, organisation_id: str, country: str, key: str) -> str:
    """A connected account for an organisation; the same one when asked again with the key.

    Without a ``country`` it is of the market's own; it cannot move to another later.
    The market bears its losses and pays its fees; the gateway asks who it is; it pays its bank only
    when asked to, so that a payout that fails is seen and tried again here.
    """
    asked: Any = {
        "controller": {
            "fees": {"payer": "application"},
            "losses": {"payments": "application"},
            "stripe_dashboard": {"type": "express"},
        },
        "capabilities": {"transfers": {"requested": True}},
        "settings": {"payouts": {"schedule": {"interval": "manual"}}},
        "metadata": {OUR_ROW: organisation_id},
    }
    if country:
        asked["country"] = country
    made = call_gateway(lambda: get_client().v1.accounts.create(asked, {"idempotency_key": key}))
    return made.id


def create_onboarding_link(*, account_id: str, return_url: str) -> str:
    """Where the gateway asks who an account is; good for some minutes and one visit."""
    made = call_gateway(
        lambda: get_client().v1.account_links.create(
            {
                "account": account_id,
                "type": "account_onboarding",
                "return_url": return_url,
                "refresh_url": return_url,
            }
        )
    )
    return made.url


def get_account(account_id: str) -> AccountState:
    found = call_gateway(lambda: get_client().v1.accounts.retrieve(account_id))
    needs = found.requirements and found.requirements.currently_due
    return AccountState(
        gateway_id=found.id,
        is_ready=bool(found.payouts_enabled),
        needs=tuple(needs or ()),
        currency=found.default_currency or LEDGER_CURRENCY,
    )


def get_available_cents(account_id: str, *, currency: str) -> int:
    """What a connected account can pay its bank now, in its currency."""
    found = call_gateway(
        lambda: get_client().v1.balance.retrieve({}, {"stripe_account": account_id})
    )
    return sum(part.amount for part in found.available if part.currency == currency)


def create_transfer(
    *,
    transfer_id: str,
    amount_cents: int,
    currency: str,
    account_id: str,
    group: str,
    key: str,
    lost_terms: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Move money to a connected account; the transfer's id.

    ``lost_terms`` is what else a market that lost the transfer needs to write it down again.
    """
    made = call_gateway(
        lambda: get_client().v1.transfers.create(
            {
                "amount": amount_cents,
                "currency": currency,
                "destination": account_id,
                "transfer_group": group,
                "metadata": name_row(transfer_id, **lost_terms),
            },
            {"idempotency_key": key},
        )
    )
    return made.id


def find_transfer(*, transfer_id: str, group: str) -> str | None:
    """The transfer that we name so, if it was made."""
    found = find_named(
        {"": transfer_id},
        lambda: get_client().v1.transfers.list({"transfer_group": group, "limit": 100}),
    )
    return None if found is None else found.id


def create_reversal(*, transfer_gateway_id: str, amount_cents: int, key: str) -> None:
    """Take a transfer back, wholly or in part."""
    call_gateway(
        lambda: get_client().v1.transfers.reversals.create(
            transfer_gateway_id, {"amount": amount_cents}, {"idempotency_key": key}
        )
    )


def is_reversed(transfer_gateway_id: str) -> bool:
    """Whether anything of a transfer was taken back."""
    return (
        call_gateway(
            lambda: get_client().v1.transfers.retrieve(transfer_gateway_id)
        ).amount_reversed
        > 0
    )


def create_payout(
    *, payout_id: str, amount_cents: int, currency: str, account_id: str, key: str
) -> PayoutState:
    """Let a connected account pay its bank."""
    return _read_payout(
        call_gateway(
            lambda: get_client().v1.payouts.create(
                {"amount": amount_cents, "currency": currency, "metadata": {OUR_ROW: payout_id}},
                {"idempotency_key": key, "stripe_account": account_id},
            )
        )
    )


def find_payout(*, payout_id: str, account_id: str) -> PayoutState | None:
    """The payout to a bank that we name so, if it was made."""
    found = find_named(
        {"": payout_id},
        lambda: get_client().v1.payouts.list({"limit": 100}, {"stripe_account": account_id}),
    )
    return None if found is None else _read_payout(found)


def get_payout(gateway_id: str, *, account_id: str) -> PayoutState:
    return _read_payout(
        call_gateway(
            lambda: get_client().v1.payouts.retrieve(gateway_id, {}, {"stripe_account": account_id})
        )
    )


def _read_payout(found: stripe.Payout) -> PayoutState:
    return PayoutState(
        gateway_id=found.id,
        status=found.status,
        failure=found.failure_message or "",
        payout_id=read_row_name(found),
        amount_cents=found.amount,
    )
