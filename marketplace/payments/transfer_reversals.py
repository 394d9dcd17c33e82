"""Taking back transfers that an earner's bank did not get yet."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.errors import Conflict, NotAllowed, NotFound, UserError
from marketplace.payments import stripe_accounts
from marketplace.payments.ledger import house, post_entry
from marketplace.payments.locks import lock_transfer
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CallKind,
    EntryKind,
    GatewayCall,
    Transfer,
    TransferStatus,
)
from marketplace.payments.outbox import WantedCall, add_calls


def list_recent_transfers(*, now: datetime, limit: int = 50) -> list[Transfer]:
    """Transfers that may still be taken back, or were: of the last weeks, the latest first."""
    recent = Transfer.objects.filter(
        status=TransferStatus.DONE, ended_at__gt=now - timedelta(days=30)
    )
    return list(recent.select_related("payout__organisation").order_by("-ended_at", "pk")[:limit])


def reverse_transfer(
    *, transfer_id: str, amount_cents: int, reversed_by: User, now: datetime
) -> Transfer:
    """Take back what an account got and its bank did not yet; what the market bore is repaid.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    NotFound
        ``unknown_transfer``.
    Conflict
        ``reversal_exceeds_transfer``, ``transfer_reversed``: it was asked for before.
    """
    if not reversed_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator takes transfers back.")
    if not Transfer.objects.filter(pk=transfer_id.replace("\0", "")).exists():
        raise NotFound("unknown_transfer", "There is no such transfer.")
    with transaction.atomic():
        _, transfer, _ = lock_transfer(transfer_id)
        if transfer.reversed_cents:
            raise Conflict("transfer_reversed", "This transfer was taken back before.")
        if transfer.status != TransferStatus.DONE or not (
            0 < amount_cents <= transfer.amount_cents
        ):
            raise Conflict("reversal_exceeds_transfer", "More than was transferred.")
        transfer.reversed_cents = amount_cents
        transfer.save(update_fields=["reversed_cents"])
        earlier = GatewayCall.objects.filter(
            kind=CallKind.REVERSAL, subject__startswith=f"{transfer.pk}:"
        )
        # Those before were refused.
        subject = f"{transfer.pk}:{earlier.count() + 1}"
        add_calls([WantedCall(CallKind.REVERSAL, subject)], now=now)
    return transfer


def _read_transfer_id(call: GatewayCall) -> str:
    """A reversal's subject is the transfer and the number of the attempt to take it back."""
    return call.subject.partition(":")[0]


def make_reversal(call: GatewayCall) -> bool:
    transfer = Transfer.objects.get(pk=_read_transfer_id(call))
    stripe_accounts.create_reversal(
        transfer_gateway_id=transfer.gateway_id,
        amount_cents=transfer.settled_back_cents,
        key=call.key,
    )
    return True


def find_reversal(call: GatewayCall) -> bool | None:
    transfer = Transfer.objects.get(pk=_read_transfer_id(call))
    return stripe_accounts.is_reversed(transfer.gateway_id) or None


def conclude_reversal(call: GatewayCall, *, answer: bool, now: datetime) -> None:
    _, transfer, locked = lock_transfer(_read_transfer_id(call))
    amount = transfer.reversed_cents * MICROS_PER_CENT
    post_entry(
        kind=EntryKind.REVERSAL,
        reference=transfer.pk,
        amounts={house(AccountKind.GATEWAY): -amount, house(AccountKind.REFUNDS): amount},
        locked=locked,
        now=now,
    )


def refuse_reversal(call: GatewayCall, *, error: UserError, now: datetime) -> None:
    """The account has paid it out: nothing was taken back."""
    _, transfer, _ = lock_transfer(_read_transfer_id(call))
    transfer.reversed_cents = 0
    transfer.save(update_fields=["reversed_cents"])
