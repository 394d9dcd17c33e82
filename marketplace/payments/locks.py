"""The only row locks of money, in their order: a request for money, a call to the gateway or an
event of it, rules of a wallet, a card payment, a refund, a payout, a transfer, ledger accounts by
key, then holds.

Every change of an organisation's money locks its accounts first. So two changes of one organisation
happen one after the other, and no deadlock is possible. No lock here keeps others from writing rows
that refer to the locked one: a hold names its card payment while that is being looked at.
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import NamedTuple

from django.db.models import QuerySet

from marketplace.payments.models import (
    AccountKind,
    CardPayment,
    CardRefund,
    FundsRequest,
    GatewayComparison,
    Hold,
    InvoiceSeries,
    LedgerAccount,
    ManualEntry,
    Payout,
    SpendingCap,
    Transfer,
    WalletRules,
)

WALLET_KINDS = (AccountKind.WALLET_AVAILABLE, AccountKind.WALLET_HELD)


class LockedAccount(NamedTuple):
    """An account as it stood when it was locked."""

    pk: str
    organisation_id: str
    kind: str
    balance_micros: int


#: Locked accounts by (organisation id, kind).
LockedAccounts = dict[tuple[str, str], LockedAccount]


class LockedHold(NamedTuple):
    """A hold as it stood when it was locked."""

    pk: str
    reference: str
    organisation_id: str
    amount_micros: int
    status: str
    charged_micros: int
    ended_at: datetime | None
    card_payment_id: str | None


def lock_accounts(wanted: Collection[tuple[str, str]]) -> LockedAccounts:
    """Locks organisations' accounts, given as (organisation id, kind), creating missing ones.

    Call in a transaction, and lock everything it will need at once.
    """
    owners = {organisation_id for organisation_id, _ in wanted}
    kinds = {kind for _, kind in wanted}
    accounts = LedgerAccount.objects.filter(organisation__in=owners, kind__in=kinds)
    found = _lock_accounts(accounts)
    missing = [key for key in wanted if key not in found]
    if missing:
        LedgerAccount.objects.bulk_create(
            [
                LedgerAccount(organisation_id=organisation_id, kind=kind, balance_micros=0)
                for organisation_id, kind in sorted(missing)
            ],
            ignore_conflicts=True,
        )
        found = _lock_accounts(accounts)
    return found


def lock_wallet(organisation_id: str) -> LockedAccounts:
    """Locks one organisation's wallet. Call in a transaction."""
    return lock_accounts([(organisation_id, kind) for kind in WALLET_KINDS])


def lock_wallets(organisation_ids: Iterable[str]) -> LockedAccounts:
    """Locks several organisations' wallets at once.

    Call first in a transaction that will hold, settle or release for more than one
    organisation: locking them one by one in the order of the bids could meet another
    transaction that does so in another order.
    """
    return lock_accounts([(pk, kind) for pk in set(organisation_ids) for kind in WALLET_KINDS])


def lock_holds(references: Collection[str]) -> tuple[LockedAccounts, list[LockedHold]]:
    """Locks holds, those there are, and first the wallets that they are part of.

    Call first in a transaction, as ``lock_wallets``. An organisation with a hold has both accounts
    of a wallet.
    """
    found = Hold.objects.filter(reference__in=references)
    accounts = LedgerAccount.objects.filter(
        organisation__in=found.values("organisation"), kind__in=WALLET_KINDS
    )
    locked = _lock_accounts(accounts)
    holds = found.select_for_update(no_key=True).order_by("pk")
    return locked, [LockedHold(*row) for row in holds.values_list(*LockedHold._fields)]


def lock_shares(
    *, hold_reference: str, buyer_id: str, earner_ids: Iterable[str] = ()
) -> LockedAccounts:
    """Locks all that sharing a hold out or refunding it may change, but the hold.

    That is the card payment behind it, the buyer's wallet and what others have earned. Call before
    any other lock of money.
    """
    paid = Hold.objects.filter(reference=hold_reference).values("card_payment")
    list(CardPayment.objects.select_for_update(no_key=True).filter(pk__in=paid).values_list("pk"))
    return lock_accounts(
        [(buyer_id, kind) for kind in WALLET_KINDS]
        + [(pk, AccountKind.EARNINGS_PENDING) for pk in earner_ids]
    )


def lock_hold(reference: str) -> Hold:
    """The hold as it is now. Call while holding its organisation's wallet accounts."""
    return Hold.objects.select_for_update(no_key=True).get(reference=reference)


def _lock_accounts(accounts: QuerySet[LedgerAccount]) -> LockedAccounts:
    rows = accounts.select_for_update(no_key=True).order_by("pk")
    found = (LockedAccount(*row) for row in rows.values_list(*LockedAccount._fields))
    return {(account.organisation_id, account.kind): account for account in found}


def lock_funds_request(request_id: str) -> FundsRequest | None:
    """Locks a request for money, before the wallet that it is for. Call in a transaction."""
    requests = FundsRequest.objects.select_for_update(of=("self",), no_key=True).select_related(
        "organisation"
    )
    return requests.filter(pk=request_id.replace("\0", "")).first()


def lock_manual_entry(manual_id: str) -> ManualEntry | None:
    """Locks what an operator proposed, before a wallet. Call in a transaction."""
    entries = ManualEntry.objects.select_for_update(of=("self",), no_key=True).select_related(
        "organisation"
    )
    return entries.filter(pk=manual_id.replace("\0", "")).first()


def lock_comparison() -> GatewayComparison:
    """Locks the latest comparison with the gateway; nothing else is locked with it."""
    GatewayComparison.objects.get_or_create(pk=1)
    return GatewayComparison.objects.select_for_update(no_key=True).get(pk=1)


def lock_payment(payment_id: str) -> CardPayment:
    """Locks a card payment, before the wallet that it is for. Call in a transaction."""
    return CardPayment.objects.select_for_update(no_key=True).get(pk=payment_id)


def lock_refund(refund_id: str) -> CardRefund:
    """Locks a refund to a card, after its payment. Call in a transaction."""
    return CardRefund.objects.select_for_update(no_key=True).get(pk=refund_id)


def lock_payout(payout_id: str) -> Payout:
    return Payout.objects.select_for_update(no_key=True).get(pk=payout_id)


def lock_transfer(transfer_id: str) -> tuple[Payout, Transfer, LockedAccounts]:
    """Locks a transfer between its payout and what its earner is owed. Call in a transaction."""
    transfers = Transfer.objects.filter(pk=transfer_id)
    payout = lock_payout(transfers.values_list("payout", flat=True).get())
    transfer = transfers.select_for_update(no_key=True).get()
    return payout, transfer, lock_accounts([(payout.organisation_id, AccountKind.EARNINGS_PAYABLE)])


def lock_cap(cap_id: str) -> SpendingCap | None:
    """Locks a cap; nothing else is locked with it. Call in a transaction."""
    caps = SpendingCap.objects.select_for_update(of=("self",), no_key=True)
    return caps.select_related("organisation", "member", "api_key").filter(pk=cap_id).first()


def lock_invoice_series(year: int) -> InvoiceSeries:
    """Locks the numbers of a year's invoices; nothing else is locked with it."""
    InvoiceSeries.objects.bulk_create([InvoiceSeries(year=year)], ignore_conflicts=True)
    return InvoiceSeries.objects.select_for_update(no_key=True).get(pk=year)


def lock_wallet_rules(organisation_id: str) -> WalletRules:
    """Locks when a wallet is filled up, before the payment that does it. Call in a transaction."""
    rules = WalletRules.objects.select_for_update(of=("self",), no_key=True)
    return rules.select_related("organisation", "auto_card").get(organisation=organisation_id)
