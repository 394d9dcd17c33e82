"""Writing entries; everything that moves money ends here."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from marketplace.accounts.models import User
from marketplace.common.errors import PaymentRequired
from marketplace.common.ids import new_id
from marketplace.common.money import format_usd, from_micros
from marketplace.payments.locks import LockedAccounts
from marketplace.payments.models import (
    ENTRY_PREFIX,
    HOUSE_KINDS,
    AccountKind,
    Entry,
    LedgerAccount,
    Posting,
)


@dataclass(frozen=True, slots=True, order=True)
class Account:
    """Names an account: an organisation's, or, with an empty id, the market's."""

    organisation_id: str
    kind: str


def house(kind: AccountKind) -> Account:
    if kind not in HOUSE_KINDS:
        raise ValueError(f"{kind} is an account of an organisation")
    return Account("", kind)


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry to be booked."""

    kind: str
    reference: str
    #: What each account gains; accounts that gain and lose nothing are left out.
    amounts: Mapping[Account, int]
    #: The hold whose money it moves, if it is one's.
    hold_reference: str = ""
    memo: str = ""
    actor: User | None = None


def post_entry(
    *,
    kind: str,
    reference: str,
    amounts: Mapping[Account, int],
    locked: LockedAccounts,
    now: datetime,
    hold_reference: str = "",
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
    rows = {a: locked[a.organisation_id, a.kind] for a in amounts if a.organisation_id}
    for account, row in rows.items():
        after_micros = row.balance_micros + amounts[account]
        if amounts[account] < 0 and after_micros < 0:
            raise refuse_overdraft(account, short_micros=-after_micros)
    draft = Draft(
        kind=kind,
        reference=reference,
        amounts=amounts,
        hold_reference=hold_reference,
        memo=memo,
        actor=actor,
    )
    [entry_id] = post_entries(drafts=[draft], locked=locked, now=now)
    return Entry.objects.get(pk=entry_id)


def post_entries(*, drafts: Iterable[Draft], locked: LockedAccounts, now: datetime) -> list[str]:
    """Books entries in their order, all or none; their keys.

    Call in the transaction that made ``locked``, which holds every organisation's account in
    the drafts, after making sure that each (kind, reference) is new and no wallet falls below
    zero; the database refuses them otherwise.
    """
    wanted = [(new_id(ENTRY_PREFIX), draft) for draft in drafts]
    houses = ensure_house_accounts(
        {
            account.kind
            for _, draft in wanted
            for account, amount in draft.amounts.items()
            if amount and not account.organisation_id
        }
    )
    postings: list[Posting] = []
    for entry_id, draft in wanted:
        if sum(draft.amounts.values()) != 0:
            raise ValueError(f"the postings of {draft} do not sum to zero")
        postings.extend(
            Posting(
                entry_id=entry_id,
                account_id=locked[account.organisation_id, account.kind].pk
                if account.organisation_id
                else houses[account.kind],
                amount_micros=amount,
            )
            for account, amount in draft.amounts.items()
            if amount
        )
    Entry.objects.bulk_create(
        Entry(
            id=entry_id,
            kind=of.kind,
            reference=of.reference,
            hold_reference=of.hold_reference,
            booked_at=now,
            memo=of.memo[:300],
            actor=of.actor,
        )
        for entry_id, of in wanted
    )
    Posting.objects.bulk_create(postings)
    return [entry_id for entry_id, _ in wanted]


def ensure_house_accounts(kinds: Collection[str]) -> dict[str, str]:
    """The keys of the market's accounts, by kind."""
    if not kinds:
        return {}
    houses = LedgerAccount.objects.filter(organisation=None).values_list("kind", "pk")
    found = dict(houses.filter(kind__in=kinds))
    if len(found) < len(set(kinds)):
        # All of them, always in this order: two first payments must not wait for each other.
        LedgerAccount.objects.bulk_create(
            [LedgerAccount(kind=kind) for kind in HOUSE_KINDS], ignore_conflicts=True
        )
        found = dict(houses.filter(kind__in=kinds))
    return found


def refuse_overdraft(account: Account, *, short_micros: int) -> PaymentRequired:
    return PaymentRequired(
        "insufficient_funds",
        f"The wallet is short of {format_usd(short_micros, up=True)}. Add funds, or bid less.",
        extra={"short_by": f"{from_micros(short_micros):f}"},
    )


def check_whole(amount_micros: int) -> None:
    if isinstance(amount_micros, bool) or not isinstance(amount_micros, int):
        raise TypeError("amounts are whole micro-dollars")
