"""Entries that operators book: one proposes them with a reason, another one books or declines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, NotAllowed, NotFound, UserError
from marketplace.payments.ledger import Account, post_entry
from marketplace.payments.locks import lock_accounts, lock_manual_entry
from marketplace.payments.models import AccountKind, EntryKind, ManualEntry, ManualKind

#: A million dollars: more is several entries.
AMOUNT_MAX_MICROS = 1_000_000_000_000
#: An organisation's accounts that a correction may move.
OF_ORGANISATION = (AccountKind.WALLET_AVAILABLE, AccountKind.EARNINGS_PAYABLE)
#: What a correction may move: accounts whose balance no other rows explain. The gateway's is for
#: money that moved after the backup from which a market went on.
CORRECTABLE = (
    *OF_ORGANISATION,
    AccountKind.GATEWAY,
    AccountKind.REVENUE,
    AccountKind.REFUNDS,
    AccountKind.SLA_CREDITS,
    AccountKind.GRANTS,
    AccountKind.GATEWAY_FEES,
    AccountKind.CHARGEBACKS,
    AccountKind.RENT,
    AccountKind.SUPPLIERS,
    AccountKind.HOUSE_FEES,
    AccountKind.TAXES,
    AccountKind.BANK,
    AccountKind.WRITE_OFFS,
)
#: The accounts of the other kinds, from and to.
_ACCOUNTS = {
    ManualKind.TAX_PAID: (AccountKind.TAXES, AccountKind.BANK),
    ManualKind.RENT_PAID: (AccountKind.SUPPLIERS, AccountKind.BANK),
    ManualKind.WRITE_OFF: (AccountKind.WRITE_OFFS, AccountKind.CHARGEBACKS),
}


@dataclass(frozen=True, slots=True)
class ManualTerms:
    """What is to be booked."""

    kind: ManualKind
    amount_micros: int
    reason: str
    #: Of a correction: the account that loses the amount, and the one that gains it.
    source: str = ""
    target: str = ""
    #: Whose account it is, where one of the two is an organisation's.
    organisation: Organisation | None = None


def propose_entry(*, terms: ManualTerms, proposed_by: User, now: datetime) -> ManualEntry:
    """Store an entry for another operator to book.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    UserError
        ``invalid_entry``: an amount, reason or account that cannot be.
    """
    _check_operator(proposed_by)
    source, target = _ACCOUNTS.get(terms.kind, (terms.source, terms.target))
    if not 0 < terms.amount_micros <= AMOUNT_MAX_MICROS:
        raise UserError("invalid_entry", "Name an amount above $0.00, up to $1,000,000.")
    if len(terms.reason.strip()) < 10:
        raise UserError("invalid_entry", "Say in a sentence why this is booked.", param="reason")
    if source == target or not {source, target} <= set(CORRECTABLE):
        raise UserError("invalid_entry", "Choose two different accounts of those listed.")
    of_organisation = source in OF_ORGANISATION or target in OF_ORGANISATION
    if of_organisation != (terms.organisation is not None):
        raise UserError("invalid_entry", "Name an organisation where its money is moved, only.")
    return ManualEntry.objects.create(
        kind=terms.kind,
        source=source,
        target=target,
        organisation=terms.organisation,
        amount_micros=terms.amount_micros,
        reason=terms.reason.strip()[:300],
        proposed_by=proposed_by,
        proposed_at=now,
    )


def book_proposed(*, manual_id: str, booked_by: User, now: datetime) -> ManualEntry:
    """Book what another operator proposed, once.

    Raises
    ------
    NotAllowed
        ``operators_only``; ``second_operator``: it was proposed by the same person.
    NotFound
        ``unknown_entry``.
    Conflict
        ``entry_decided``: it was booked or declined before.
    PaymentRequired
        ``insufficient_funds``: the organisation has less.
    """
    with transaction.atomic():
        manual = _lock(manual_id, decided_by=booked_by)
        if manual.proposed_by_id == booked_by.pk:
            raise NotAllowed("second_operator", "Another operator than you has to book this.")
        of = manual.organisation
        locked = {} if of is None else lock_accounts([(of.pk, kind) for kind in OF_ORGANISATION])
        amount = manual.amount_micros
        manual.entry = post_entry(
            kind=EntryKind.MANUAL,
            reference=manual.pk,
            amounts={
                _find_account(manual, manual.source): -amount,
                _find_account(manual, manual.target): amount,
            },
            locked=locked,
            now=now,
            memo=f"{ManualKind(manual.kind).label}: {manual.reason}",
            actor=booked_by,
        )
        _decide(manual, booked_by, now=now)
    return manual


def decline_proposed(*, manual_id: str, declined_by: User, now: datetime) -> ManualEntry:
    """Book nothing; who proposed it may take it back so.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    NotFound
        ``unknown_entry``.
    Conflict
        ``entry_decided``.
    """
    with transaction.atomic():
        manual = _lock(manual_id, decided_by=declined_by)
        _decide(manual, declined_by, now=now)
    return manual


def list_manual_entries(*, limit: int = 50) -> list[ManualEntry]:
    """What waits for a second operator first, then what was decided, the latest first."""
    people = ("proposed_by", "decided_by", "organisation")
    waiting = ManualEntry.objects.filter(decided_at=None).order_by("proposed_at")
    decided = ManualEntry.objects.filter(decided_at__isnull=False).order_by("-decided_at")
    return [*waiting.select_related(*people), *decided.select_related(*people)[:limit]]


def _find_account(manual: ManualEntry, kind: str) -> Account:
    of = manual.organisation if kind in OF_ORGANISATION else None
    return Account("" if of is None else of.pk, kind)


def _lock(manual_id: str, *, decided_by: User) -> ManualEntry:
    _check_operator(decided_by)
    manual = lock_manual_entry(manual_id)
    if manual is None:
        raise NotFound("unknown_entry", "There is no such proposal.")
    if manual.decided_at is not None:
        raise Conflict("entry_decided", "This was booked or declined before.")
    return manual


def _decide(manual: ManualEntry, decided_by: User, *, now: datetime) -> None:
    manual.decided_by, manual.decided_at = decided_by, now
    manual.save(update_fields=["decided_by", "decided_at", "entry"])


def _check_operator(person: User) -> None:
    if not person.is_operator:
        raise NotAllowed("operators_only", "Only operators book entries.")
