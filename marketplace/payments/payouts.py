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
from marketplace.payments import stripe_accounts
from marketplace.payments.freezes import list_freezes
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_accounts
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
)
from marketplace.payments.movements import find_settlement
from marketplace.payments.outbox import WantedCall, add_calls
from marketplace.payments.payout_messages import announce_payout
from marketplace.payments.reserves import compute_reserve
from marketplace.payments.restores import is_gateway_held

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
        list_unpaid(organisation_id).update(payout=payout)
        add_calls([WantedCall(CallKind.TRANSFER, transfer.pk) for transfer in transfers], now=now)
        announce_payout(payout, "started", now=now)
    return payout


def _waits_for_bank(organisation_id: str) -> bool:
    """Whether what an account in another currency got before may be there still.

    What came since could not be told from it.
    """
    accounts = PayoutAccount.objects.filter(organisation=organisation_id)
    is_other = accounts.exclude(currency=find_settlement()[0]).exists()
    return is_other and list_unsent(organisation_id).exists()


def list_unsent(organisation_id: str) -> QuerySet[Payout]:
    """Payouts that the bank is to be paid still, after a failure or for the first time."""
    calls = GatewayCall.objects.filter(kind=CallKind.PAYOUT, status=CallStatus.WAITING)
    asked = {subject.partition(":")[0] for subject in calls.values_list("subject", flat=True)}
    unsent = Q(status=PayoutStatus.FAILED) | Q(status=PayoutStatus.SENT, pk__in=asked)
    return Payout.objects.filter(unsent, organisation=organisation_id)


def list_unpaid(organisation_id: str) -> QuerySet[Earning]:
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
        list_unpaid(payout.organisation_id)
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
