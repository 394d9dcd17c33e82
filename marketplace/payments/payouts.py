"""Paying earnings out: transfers by job to the earner's account, then one payout to its bank.

Earnings that are payable leave on a schedule, in whole cents; the part of a cent stays for the
next time. Each step is a call of the outbox, so a crash loses none and repeats none.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from marketplace.accounts.models import Organisation
from marketplace.common.errors import UserError
from marketplace.payments import stripe_accounts
from marketplace.payments.freezes import list_freezes
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import LockedAccounts, lock_accounts, lock_payout, lock_transfer
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    BillingDetails,
    CallKind,
    CallStatus,
    Earning,
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
from marketplace.payments.reserves import compute_reserve
from marketplace.payments.restores import is_gateway_held
from marketplace.payments.stripe_accounts import PayoutState
from marketplace.payments.stripe_client import GatewayFault, GatewayRefused

#: Pause before a payout that the bank did not take is tried again.
RETRY_AFTER = timedelta(days=1)


def open_payout_account(*, organisation: Organisation, now: datetime, return_url: str) -> str:
    """The address where the gateway asks an organisation who it is; call outside transactions."""
    account = PayoutAccount.objects.filter(organisation=organisation).first()
    if account is None:
        # A click later asks with another key: the gateway repeats a fault to the same one.
        key = f"account-{organisation.pk}-{now:%Y%m%d%H%M}"
        details = BillingDetails.objects.filter(organisation=organisation)
        country = details.values_list("country", flat=True).first() or ""
        made = stripe_accounts.create_account(
            organisation_id=organisation.pk, country=country, key=f"{key}{country}"
        )
        account, _ = PayoutAccount.objects.get_or_create(
            organisation=organisation, defaults={"gateway_id": made, "made_at": now}
        )
    return stripe_accounts.create_onboarding_link(
        account_id=account.gateway_id, return_url=return_url
    )


def refresh_payout_account(organisation_id: str) -> PayoutAccount | None:
    """The account as the gateway knows it now; call outside transactions."""
    account = PayoutAccount.objects.filter(organisation=organisation_id).first()
    if account is None:
        return None
    state = stripe_accounts.get_account(account.gateway_id)
    account.is_ready, account.needs = state.is_ready, list(state.needs)
    account.currency = state.currency
    account.save(update_fields=["is_ready", "needs", "currency"])
    return account


def start_due_payouts(*, now: datetime) -> int:
    """Start a payout for every organisation that is due one; how many."""
    ready = PayoutAccount.objects.filter(is_ready=True).values_list("organisation", flat=True)
    return sum(
        start_payout(organisation_id=organisation_id, now=now) is not None
        for organisation_id in list(ready)
    )


def start_payout(*, organisation_id: str, now: datetime) -> Payout | None:
    """Let payable earnings leave, where they reach the threshold and the schedule says so.

    They stay while the organisation is frozen: it may owe the market what it earned here. After a
    restore they may have left already.
    """
    payable = Account(organisation_id, AccountKind.EARNINGS_PAYABLE)
    with transaction.atomic():
        locked = lock_accounts([(organisation_id, payable.kind)])
        earlier = Payout.objects.filter(organisation=organisation_id)
        recent = now - timedelta(days=settings.PAYOUT_EVERY_DAYS)
        if (
            earlier.filter(made_at__gt=recent).exists()
            or earlier.filter(status=PayoutStatus.MOVING).exists()
            or list_freezes([organisation_id])
            or is_gateway_held()
            or _waits_for_bank(organisation_id)
        ):
            return None
        balance = locked[organisation_id, payable.kind].balance_micros
        balance -= compute_reserve(organisation_id=organisation_id, now=now)
        cents = balance // MICROS_PER_CENT
        if cents <= 0 or balance < settings.PAYOUT_THRESHOLD_MICROS:
            return None
        payout = Payout.objects.create(
            organisation_id=organisation_id, amount_cents=cents, made_at=now
        )
        amount = payout.amount_micros
        post_entry(
            kind=EntryKind.PAYOUT,
            reference=payout.pk,
            amounts={payable: -amount, house(AccountKind.PAYOUTS): amount},
            locked=locked,
            now=now,
        )
        transfers = Transfer.objects.bulk_create(_split_by_job(payout, balance))
        _list_unpaid(organisation_id).update(payout=payout)
        add_calls([WantedCall(CallKind.TRANSFER, transfer.pk) for transfer in transfers], now=now)
        announce_payout(payout, "started", now=now)
    return payout


def _waits_for_bank(organisation_id: str) -> bool:
    """Whether what an account in another currency got before may be there still.

    What came since could not be told from it.
    """
    accounts = PayoutAccount.objects.filter(organisation=organisation_id)
    is_other = accounts.exclude(currency=find_settlement()[0]).exists()
    return is_other and _list_unsent(organisation_id).exists()


def _list_unsent(organisation_id: str) -> QuerySet[Payout]:
    """Payouts that the bank is to be paid still, after a failure or for the first time."""
    calls = GatewayCall.objects.filter(kind=CallKind.PAYOUT, status=CallStatus.WAITING)
    asked = {subject.partition(":")[0] for subject in calls.values_list("subject", flat=True)}
    unsent = Q(status=PayoutStatus.FAILED) | Q(status=PayoutStatus.SENT, pk__in=asked)
    return Payout.objects.filter(unsent, organisation=organisation_id)


def _list_unpaid(organisation_id: str) -> QuerySet[Earning]:
    """Payable earnings that no payout has taken along."""
    return Earning.objects.filter(
        organisation=organisation_id, matured_at__isnull=False, payout__isnull=True
    )


def _split_by_job(payout: Payout, balance: int) -> list[Transfer]:
    """Whole cents for each job, rounded so that they add up to the payout.

    What is payable beyond the earnings, such as a part of a cent or a reserve from before, goes
    under the payout's own name. What is reserved now stays of the latest jobs.
    """
    by_job: defaultdict[str, int] = defaultdict(int)
    for reference, amount in (
        _list_unpaid(payout.organisation_id)
        .order_by("accrued_at", "pk")
        .values_list("reference", "amount_micros")
    ):
        by_job[reference] += amount
    groups = {payout.pk: max(0, balance - sum(by_job.values())), **by_job}
    currency, rate = find_settlement()
    transfers: list[Transfer] = []
    before = 0
    for group, amount in groups.items():
        after = min(balance, before + amount)
        cents = after // MICROS_PER_CENT - before // MICROS_PER_CENT
        if cents:
            transfers.append(
                Transfer(
                    payout=payout,
                    group=group,
                    amount_cents=cents,
                    currency=currency,
                    settled_cents=round(cents * rate),
                )
            )
        before = after
    return transfers


# What the outbox does about transfers.


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


# What the outbox does about payouts to banks.


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
    elif _list_unsent(payout.organisation_id).exclude(pk=payout.pk).exists():
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
