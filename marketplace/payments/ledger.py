"""Writing one entry; everything that moves money ends here."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from marketplace.accounts.models import User
from marketplace.common.errors import PaymentRequired
from marketplace.common.money import format_usd
from marketplace.payments.locks import Locked
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
    locked: Locked,
    now: datetime,
    memo: str = "",
    actor: User | None = None,
) -> Entry:
    """Books one entry; accounts that gain and lose nothing are left out.

    Call in the transaction that made ``locked``, which holds every organisation's account in
    ``amounts``, after making sure that (kind, reference) is new. A refusal comes before
    anything is written.

    Raises
    ------
    PaymentRequired
        ``insufficient_funds``: a wallet would fall below zero.
    """
    moved = {account: amount for account, amount in amounts.items() if amount}
    if sum(moved.values()) != 0:
        raise ValueError(f"the postings of {kind} {reference} do not sum to zero: {moved}")
    rows = {a: locked[a.organisation_id, a.kind] for a in moved if a.organisation_id}
    for account, row in rows.items():
        after_micros = (row.balance_micros or 0) + moved[account]
        if after_micros < 0:
            raise _insufficient(account, short_micros=-after_micros)
    houses = _house_accounts([a.kind for a in moved if not a.organisation_id])
    entry = Entry.objects.create(
        kind=kind, reference=reference, booked_at=now, memo=memo[:300], actor=actor
    )
    Posting.objects.bulk_create(
        Posting(
            entry=entry,
            account_id=rows[account].pk if account in rows else houses[account.kind],
            amount_micros=amount,
        )
        for account, amount in moved.items()
    )
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
        f"The wallet is short of {format_usd(short_micros, up=True)}. Add funds, or bid less.",
        extra={"short_micros": short_micros, "account": account.kind},
    )


def whole_check(amount_micros: int) -> None:
    if isinstance(amount_micros, bool) or not isinstance(amount_micros, int):
        raise TypeError("amounts are whole micro-dollars")
