"""What the outbox does about payouts: transfers to the earner's account, then to its bank."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from marketplace.common.errors import UserError
from marketplace.payments import stripe_accounts
from marketplace.payments.freezes import list_freezes
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import LockedAccounts, lock_payout, lock_transfer
from marketplace.payments.models import (
    AccountKind,
    CallKind,
    CallStatus,
    EntryKind,
    GatewayCall,
    Payout,
    PayoutAccount,
    PayoutStatus,
    Transfer,
    TransferStatus,
)
from marketplace.payments.movements import find_settlement
from marketplace.payments.outbox import WantedCall, add_calls
from marketplace.payments.payout_messages import announce_payout
from marketplace.payments.payouts import list_unsent
from marketplace.payments.stripe_accounts import PayoutState
from marketplace.payments.stripe_client import GatewayFault, GatewayRefused

#: Pause before a payout that the bank did not take is tried again.
RETRY_AFTER = timedelta(days=1)


def make_transfer(call: GatewayCall) -> str:
    """The gateway's transfer; while frozen or without money at the gateway it is tried later."""
    transfer = Transfer.objects.select_related("payout").get(pk=call.subject)
    _wait_while_frozen(transfer.payout.organisation_id)
    account = PayoutAccount.objects.get(organisation=transfer.payout.organisation_id)
    try:
        return stripe_accounts.create_transfer(
            transfer_id=transfer.pk,
            amount_cents=transfer.settled_cents,
            currency=transfer.currency,
            account_id=account.gateway_id,
            group=transfer.group,
            key=call.key,
            lost_terms={
                "organisation": transfer.payout.organisation_id,
                "payout": transfer.payout_id,
                "cents": transfer.amount_cents,
            },
        )
    except GatewayRefused as error:
        if error.code == "balance_insufficient":
            _price_again(transfer)
            raise GatewayFault(error.message, is_kept=True) from None
        raise


def _price_again(transfer: Transfer) -> None:
    """Let what the gateway did not move leave in what it settles in now, where that has changed."""
    currency, rate = find_settlement()
    if currency != transfer.currency:
        cents = round(transfer.amount_cents * rate)
        waiting = Transfer.objects.filter(pk=transfer.pk, status=TransferStatus.WAITING)
        waiting.update(currency=currency, settled_cents=cents)


def _wait_while_frozen(organisation_id: str) -> None:
    if list_freezes([organisation_id]):
        raise GatewayFault("the organisation is frozen", is_kept=False)


def find_transfer(call: GatewayCall) -> str | None:
    transfer = Transfer.objects.get(pk=call.subject)
    return stripe_accounts.find_transfer(transfer_id=transfer.pk, group=transfer.group)


def conclude_transfer(call: GatewayCall, *, answer: str, now: datetime) -> None:
    payout, transfer, locked = lock_transfer(call.subject)
    _book_transfer(transfer, house(AccountKind.GATEWAY), locked, now=now)
    transfer.status, transfer.gateway_id, transfer.ended_at = TransferStatus.DONE, answer, now
    transfer.save(update_fields=["status", "gateway_id", "ended_at"])
    _go_on(payout, now=now)


def return_transfer(call: GatewayCall, *, error: UserError, now: datetime) -> None:
    """The gateway refuses the transfer: its amount is payable again."""
    payout, transfer, locked = lock_transfer(call.subject)
    payable = Account(payout.organisation_id, AccountKind.EARNINGS_PAYABLE)
    _book_transfer(transfer, payable, locked, now=now)
    transfer.status, transfer.ended_at = TransferStatus.REFUSED, now
    transfer.save(update_fields=["status", "ended_at"])
    payout.failure = error.message[:300]
    payout.save(update_fields=["failure"])
    _go_on(payout, now=now)


def _book_transfer(
    transfer: Transfer, to: Account, locked: LockedAccounts, *, now: datetime
) -> None:
    amount = transfer.amount_micros
    post_entry(
        kind=EntryKind.TRANSFER,
        reference=transfer.pk,
        amounts={house(AccountKind.PAYOUTS): -amount, to: amount},
        locked=locked,
        now=now,
    )


def _go_on(payout: Payout, *, now: datetime) -> None:
    """Once every transfer has ended, the bank is next. Call while holding the payout."""
    if payout.transfers.filter(status=TransferStatus.WAITING).exists():
        return
    if payout.transfers.filter(status=TransferStatus.DONE).exists():
        _send_to_bank(payout, now=now)
    else:
        payout.status, payout.ended_at = PayoutStatus.RETURNED, now
        payout.save(update_fields=["status", "ended_at"])
        announce_payout(payout, "returned", now=now)


def _send_to_bank(payout: Payout, *, now: datetime) -> None:
    if not _count_sent_cents(payout):
        # All of it was taken back before.
        payout.status, payout.ended_at, payout.retry_at = PayoutStatus.RETURNED, now, None
        payout.save(update_fields=["status", "ended_at", "retry_at"])
        announce_payout(payout, "returned", now=now)
        return
    payout.attempts += 1
    payout.status, payout.retry_at = PayoutStatus.SENT, None
    payout.save(update_fields=["attempts", "status", "retry_at"])
    add_calls([WantedCall(CallKind.PAYOUT, _name_attempt(payout))], now=now)


def _name_attempt(payout: Payout) -> str:
    return f"{payout.pk}:{payout.attempts}"


# Payouts to banks.


def make_payout(call: GatewayCall) -> PayoutState:
    """The gateway's payout; while frozen, or while a part is taken back, it is tried later."""
    payout = Payout.objects.get(pk=call.subject.partition(":")[0])
    _wait_while_frozen(payout.organisation_id)
    asked = GatewayCall.objects.filter(kind=CallKind.REVERSAL, status=CallStatus.WAITING)
    taken = [subject.partition(":")[0] for subject in asked.values_list("subject", flat=True)]
    sent = Transfer.objects.filter(payout__organisation=payout.organisation_id)
    if sent.filter(pk__in=taken).exists():
        # Refused after this is sent, that part would stay in the account.
        raise GatewayFault("a transfer is being taken back", is_kept=False)
    account = PayoutAccount.objects.get(organisation=payout.organisation_id)
    return stripe_accounts.create_payout(
        payout_id=call.subject,
        amount_cents=_find_payout_cents(payout, account),
        currency=account.currency,
        account_id=account.gateway_id,
        key=call.key,
    )


def _find_payout_cents(payout: Payout, account: PayoutAccount) -> int:
    """What the bank gets, in the account's currency.

    What a transfer in another currency came to, only the gateway knows: it is what the account has,
    once nothing else is to leave it, and the same again after the bank did not take it.
    """
    done = list(payout.transfers.filter(status=TransferStatus.DONE))
    if all(transfer.currency == account.currency for transfer in done):
        return sum(transfer.settled_cents - transfer.settled_back_cents for transfer in done)
    found = stripe_accounts.get_available_cents(account.gateway_id, currency=account.currency)
    if payout.gateway_id:
        before = stripe_accounts.get_payout(payout.gateway_id, account_id=account.gateway_id)
        found = min(found, before.amount_cents)
    elif list_unsent(payout.organisation_id).exclude(pk=payout.pk).exists():
        raise GatewayFault("another payout is not at the bank yet", is_kept=False)
    if found <= 0:
        raise GatewayFault("the transfers are not available at the account", is_kept=False)
    return found


def find_payout(call: GatewayCall) -> PayoutState | None:
    payout = Payout.objects.get(pk=call.subject.partition(":")[0])
    account = PayoutAccount.objects.get(organisation=payout.organisation_id)
    return stripe_accounts.find_payout(payout_id=call.subject, account_id=account.gateway_id)


def _count_sent_cents(payout: Payout) -> int:
    done = payout.transfers.filter(status=TransferStatus.DONE)
    return sum(transfer.amount_cents - transfer.reversed_cents for transfer in done)


def apply_payout(call: GatewayCall, *, answer: PayoutState, now: datetime) -> None:
    record_payout(answer, now=now, payout_id=call.subject.partition(":")[0])


def fail_payout(call: GatewayCall, *, error: UserError, now: datetime) -> None:
    """The gateway does not even try; so do we again later."""
    payout = lock_payout(call.subject.partition(":")[0])
    if call.subject == _name_attempt(payout):
        _fail(payout, error.message, now=now)


def record_payout(state: PayoutState, *, payout_id: str, now: datetime) -> None:
    """What became of a payout to the bank. Call in a transaction."""
    payout = lock_payout(payout_id)
    if state.payout_id != _name_attempt(payout):
        # An earlier attempt says nothing of the present one, which may be on its way.
        return
    if payout.gateway_id != state.gateway_id:
        payout.gateway_id = state.gateway_id
        payout.save(update_fields=["gateway_id"])
    if state.status == "paid" and payout.status == PayoutStatus.SENT:
        payout.status, payout.ended_at, payout.failure = PayoutStatus.PAID, now, ""
        payout.save(update_fields=["status", "ended_at", "failure"])
        announce_payout(payout, "paid", now=now)
    elif state.status in ("failed", "canceled") and payout.status != PayoutStatus.FAILED:
        # A bank may send back what was reported as paid before.
        _fail(payout, state.failure or "The bank did not take the payout.", now=now)


def _fail(payout: Payout, why: str, *, now: datetime) -> None:
    payout.status, payout.ended_at = PayoutStatus.FAILED, None
    payout.failure, payout.retry_at = why[:300], now + RETRY_AFTER
    payout.save(update_fields=["status", "ended_at", "failure", "retry_at"])
    announce_payout(payout, "failed", now=now)


def retry_failed_payouts(*, now: datetime) -> int:
    """Try payouts again that a bank did not take; how many."""
    due = Payout.objects.filter(status=PayoutStatus.FAILED, retry_at__lte=now)
    return sum(retry_payout(payout_id=pk, now=now) for pk in due.values_list("pk", flat=True))


def retry_payout(*, payout_id: str, now: datetime) -> bool:
    """Try one again now, unless it did not fail."""
    with transaction.atomic():
        payout = lock_payout(payout_id)
        if payout.status != PayoutStatus.FAILED:
            return False
        _send_to_bank(payout, now=now)
    return True
