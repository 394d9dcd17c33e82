"""Writing one entry; everything that moves money ends here."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.errors import PaymentRequired
from marketplace.common.money import format_usd
from marketplace.payments.locks import accounts_lock
from marketplace.payments.models import HOUSE_KINDS, AccountKind, Entry, LedgerAccount, Posting


@dataclass(frozen=True, slots=True, order=True)
class Account:
    """Names an account: an organisation's, or, with an empty id, the house's."""

    organisation_id: str
    kind: str


def house(kind: AccountKind) -> Account:
    if kind not in HOUSE_KINDS:
        raise ValueError(f"{kind} is an account of an organisation")
    return Account("", kind)


def entry_post(
    *,
    kind: str,
    reference: str,
    amounts: Mapping[Account, int],
    now: datetime,
    memo: str = "",
    actor: User | None = None,
) -> Entry:
    """Books one entry; accounts that gain and lose nothing are left out.

    The caller has made sure that (kind, reference) is new and that the accounts are locked.

    Raises
    ------
    PaymentRequired
        ``insufficient_funds``: a wallet would fall below zero.
    """
    moved = {account: amount for account, amount in amounts.items() if amount}
    if sum(moved.values()) != 0:
        raise ValueError(f"the postings of {kind} {reference} do not sum to zero: {moved}")
    with transaction.atomic():
        rows = accounts_lock([(a.organisation_id, a.kind) for a in moved if a.organisation_id])
        for account, amount in moved.items():
            row = rows.get((account.organisation_id, account.kind))
            if row is not None and (row.balance_micros or 0) + amount < 0:
                raise _insufficient(account, short_micros=-(row.balance_micros or 0) - amount)
        houses = _house_accounts([a.kind for a in moved if not a.organisation_id])
        entry = Entry.objects.create(
            kind=kind, reference=reference, booked_at=now, memo=memo[:300], actor=actor
        )
        postings = [
            Posting(
                entry=entry,
                account_id=(
                    rows[account.organisation_id, account.kind].pk
                    if account.organisation_id
                    else houses[account.kind]
                ),
                amount_micros=amount,
            )
            for account, amount in moved.items()
        ]
        Posting.objects.bulk_create(postings)
    return entry


def _house_accounts(kinds: list[str]) -> dict[str, str]:
    """The keys of the house's accounts, by kind."""
    if not kinds:
        return {}
    accounts = LedgerAccount.objects.filter(organisation=None, kind__in=kinds)
    found = dict(accounts.values_list("kind", "pk"))
    if len(found) < len(set(kinds)):
        # All of them, always in this order: two first payments must not wait for each other.
        LedgerAccount.objects.bulk_create(
            [LedgerAccount(kind=kind) for kind in HOUSE_KINDS], ignore_conflicts=True
        )
        found = dict(accounts.all().values_list("kind", "pk"))
    return found


def _insufficient(account: Account, *, short_micros: int) -> PaymentRequired:
    return PaymentRequired(
        "insufficient_funds",
        f"The wallet is short of {format_usd(short_micros)}. Add funds, or bid less.",
        extra={"short_micros": short_micros, "account": account.kind},
    )
