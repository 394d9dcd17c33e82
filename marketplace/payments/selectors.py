"""What one may know about money. All amounts are micro-dollars."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import groupby
from typing import NamedTuple

from django.db.models import F, Q, Sum
from django.db.models.functions import Coalesce, TruncDate

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound
from marketplace.payments.account_sums import annotate_totals
from marketplace.payments.locks import WALLET_KINDS
from marketplace.payments.models import (
    HOUSE_KINDS,
    IDLE_SUFFIX,
    REFUND_SOURCES,
    AccountKind,
    CardPayment,
    Chargeback,
    Distribution,
    Earning,
    EarningKind,
    EarningSum,
    Entry,
    EntryKind,
    Hold,
    LedgerAccount,
    Posting,
)


@dataclass(frozen=True, slots=True)
class Wallet:
    #: What the organisation may bid with.
    available_micros: int
    #: What its undecided bids hold.
    held_micros: int


class Spender(NamedTuple):
    """The member and the key whose caps a hold counts for."""

    placed_by_id: str | None
    api_key_id: str | None


class Refund(NamedTuple):
    """A part of a payment that went back to its owner."""

    at: datetime
    reason: str
    amount_micros: int


@dataclass(frozen=True, slots=True)
class StatementRow:
    """What one entry did to a wallet."""

    entry_id: str
    at: datetime
    kind: str
    #: The business event's name, such as a bid's id.
    reference: str
    memo: str
    available_change_micros: int
    held_change_micros: int
    #: What was available after it.
    available_after_micros: int
    #: Pass as ``before`` to read on from here.
    cursor: int


@dataclass(frozen=True, slots=True)
class Earnings:
    #: Earned, within the payout delay.
    pending_micros: int
    #: Ready to be paid out.
    payable_micros: int


def find_spenders(hold_references: Collection[str]) -> dict[str, Spender]:
    """Who placed what, by the holds' references."""
    rows = Hold.objects.filter(reference__in=hold_references)
    return {
        reference: Spender(placed_by_id, api_key_id)
        for reference, placed_by_id, api_key_id in rows.values_list(
            "reference", "placed_by_id", "api_key_id"
        )
    }


def get_wallet(*, organisation: Organisation) -> Wallet:
    balances = _load_balances(organisation)
    return Wallet(
        available_micros=balances.get(AccountKind.WALLET_AVAILABLE, 0),
        held_micros=balances.get(AccountKind.WALLET_HELD, 0),
    )


def get_earnings(*, organisation: Organisation) -> Earnings:
    balances = _load_balances(organisation)
    return Earnings(
        pending_micros=balances.get(AccountKind.EARNINGS_PENDING, 0),
        payable_micros=balances.get(AccountKind.EARNINGS_PAYABLE, 0),
    )


def list_earnings(*, organisation: Organisation, limit: int = 100) -> list[Earning]:
    """The latest lines of what an organisation earned, newest first."""
    return list(
        Earning.objects.filter(organisation=organisation, returned_at=None).order_by(
            "-accrued_at", "-pk"
        )[:limit]
    )


def sum_earned(*, organisation: Organisation, since: datetime) -> int:
    """Micro-dollars that an organisation earned since a moment."""
    lines = Earning.objects.filter(
        organisation=organisation, returned_at=None, accrued_at__gt=since
    )
    return lines.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]


def sum_earned_by_kind(*, organisation: Organisation, since: datetime) -> dict[str, int]:
    """What an organisation earned since a moment, by ``EarningKind``, where it is anything."""
    lines = Earning.objects.filter(
        organisation=organisation, returned_at=None, accrued_at__gt=since
    )
    return dict(lines.values_list("kind").annotate(Sum("amount_micros")).order_by("kind"))


@dataclass(frozen=True, slots=True)
class EarningsDay:
    """What was earned on one day."""

    day: date
    amount_micros: int
    #: How many lines that is.
    lines: int


def list_earning_days(
    *, organisation: Organisation, until: date, days: int, zone: tzinfo = UTC
) -> tuple[list[EarningsDay], bool]:
    """Each of the ``days`` that end with ``until``, the latest first; and whether earlier ones are.

    A day on which nothing was earned is among them. ``zone`` says when a day begins.
    """
    first = until - timedelta(days=days - 1)
    begins, ends = (datetime.combine(day, time(), zone) for day in (first, until + timedelta(1)))
    sums = EarningSum.objects.filter(organisation=organisation, lines__gt=0)
    found = {
        day: (amount, count)
        for day, amount, count in sums.filter(starts_at__gte=begins, starts_at__lt=ends)
        .annotate(day=TruncDate("starts_at", tzinfo=zone))
        .values_list("day")
        .annotate(Sum("amount_micros"), Sum("lines"))
    }
    listed = (until - timedelta(days=back) for back in range(days))
    return (
        [EarningsDay(day, *found.get(day, (0, 0))) for day in listed],
        sums.filter(starts_at__lt=begins).exists(),
    )


def measure_refundable(*, hold_reference: str) -> int:
    """Micro-dollars of a charge that were not refunded yet."""
    hold = Hold.objects.get(reference=hold_reference)
    return (hold.charged_micros or 0) - hold.refunded_micros


def build_shares_filter(hold_references: Collection[str]) -> Q:
    """Postings that shared holds' payments out, and those that gave of them back.

    Each kind of entry goes by the name that it has an index of: a hold is shared out once.
    """
    shared = Q(entry__kind=EntryKind.DISTRIBUTION, entry__reference__in=hold_references)
    back = Q(entry__kind=EntryKind.REFUND, entry__hold_reference__in=hold_references)
    return shared | back


def find_house_fees(*, hold_reference: str) -> dict[str, int]:
    """What the house has of a job's payment, by kind of account.

    The kinds are its fee for work units, and what is kept of a job that its owner ended, less what
    went back or to providers since.
    """
    idle = Q(entry__kind=EntryKind.IDLE_PAY, entry__reference=hold_reference)
    idle |= Q(entry__kind=EntryKind.PAY_RETURN, entry__reference=hold_reference + IDLE_SUFFIX)
    fees = Posting.objects.filter(
        build_shares_filter([hold_reference]) | idle,
        account__kind__in=(AccountKind.HOUSE_FEES, AccountKind.CONGESTION),
    )
    sums = fees.values("account__kind").annotate(total=Sum("amount_micros"))
    return dict(sums.values_list("account__kind", "total"))


def find_distribution(*, hold_reference: str) -> Distribution | None:
    """How a payment's operational cost was shared out; ``None`` before it was."""
    return Distribution.objects.filter(hold__reference=hold_reference).first()


def list_fees(*, hold_reference: str) -> list[Earning]:
    """What others than providers earned with one payment: a vendor, the owner of a donor."""
    fees = Earning.objects.filter(
        kind__in=(EarningKind.VENDOR, EarningKind.ROYALTY),
        reference=hold_reference,
        returned_at=None,
    )
    return list(fees.select_related("organisation").order_by("pk"))


def list_entries(*, hold_reference: str, limit: int) -> list[Entry]:
    """How one payment moved, the first entries first.

    Entries have no index by their hold but refunds: each goes by the name that it was booked under.
    """
    earned = Earning.objects.filter(kind__in=EarningKind.values, reference=hold_reference)
    earnings = list(earned.values_list("pk", "organisation"))
    hold = Hold.objects.filter(reference=hold_reference)
    contested = Chargeback.objects.filter(payment__organisation__in=hold.values("organisation"))
    names = [
        hold_reference,
        hold_reference + IDLE_SUFFIX,
        *(f"{hold_reference}:{earner}" for _, earner in earnings),
        *(f"{one}:{pk}" for one in contested.values_list("pk", flat=True) for pk, _ in earnings),
    ]
    named = Entry.objects.filter(kind__in=EntryKind.values, reference__in=names)
    refunds = Entry.objects.filter(kind=EntryKind.REFUND, hold_reference=hold_reference)
    # Each without the other and without an order, so that neither walks through all entries.
    found = {entry.pk: entry for entry in [*named, *refunds]}
    return [found[pk] for pk in sorted(found)[:limit]]


def list_idle_pay(*, hold_reference: str) -> list[Earning]:
    """What providers got for cells that the owner of one payment gave back too late."""
    pay = Earning.objects.filter(kind=EarningKind.IDLE, reference=hold_reference, returned_at=None)
    return list(pay.select_related("organisation").order_by("pk"))


def list_refunds(*, hold_reference: str) -> list[Refund]:
    """What went back of one payment, in the order in which it was booked."""
    sources = Posting.objects.filter(
        account__kind__in=REFUND_SOURCES,
        entry__kind=EntryKind.REFUND,
        entry__hold_reference=hold_reference,
    )
    rows = sources.order_by("entry__booked_at", "pk")
    return [
        Refund(at, reason, -amount)
        for at, reason, amount in rows.values_list(
            "entry__booked_at", "entry__memo", "amount_micros"
        )
    ]


def find_card_payment_of(*, hold_reference: str) -> CardPayment | None:
    """The card payment behind a hold; ``None`` where the wallet holds the money."""
    return CardPayment.objects.filter(hold__reference=hold_reference).first()


def sum_borne(*, at_fault_id: str, since: datetime) -> int:
    """What the market bore for the faults of a provider since a moment."""
    borne = Distribution.objects.filter(at_fault=at_fault_id, made_at__gte=since)
    return borne.aggregate(
        total=Coalesce(
            Sum(F("borne_pay_micros") + F("borne_credit_micros") + F("borne_vendor_micros")), 0
        )
    )["total"]


def list_wallet_rows(
    *, organisation: Organisation, limit: int = 50, before: int | None = None
) -> list[StatementRow]:
    """What happened to a wallet, newest first; ``before`` is the last row's ``cursor``."""
    postings = Posting.objects.filter(
        account__organisation=organisation, account__kind__in=WALLET_KINDS
    )
    if before is not None:
        postings = postings.filter(pk__lt=before)
    # A wallet's entries are written one after the other, so the postings of each, two at
    # most, stand together.
    newest = postings.select_related("entry", "account").order_by("-pk")[: 2 * limit]
    entries = [(entry, list(group)) for entry, group in groupby(newest, lambda p: p.entry)]
    available = LedgerAccount.objects.filter(
        organisation=organisation, kind=AccountKind.WALLET_AVAILABLE
    )
    after_micros = available.values_list("balance_micros", flat=True).first() or 0
    if before is not None:
        # What came later, and not what came before, which may be years.
        later = Posting.objects.filter(account__in=available, pk__gte=before)
        after_micros -= later.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]
    rows: list[StatementRow] = []
    for entry, group in entries[:limit]:
        changes = {posting.account.kind: posting.amount_micros for posting in group}
        available_change = changes.get(AccountKind.WALLET_AVAILABLE, 0)
        rows.append(
            StatementRow(
                entry_id=entry.pk,
                at=entry.booked_at,
                kind=entry.kind,
                reference=entry.reference,
                memo=entry.memo,
                available_change_micros=available_change,
                held_change_micros=changes.get(AccountKind.WALLET_HELD, 0),
                available_after_micros=after_micros,
                cursor=group[-1].pk,
            )
        )
        after_micros -= available_change
    return rows


def get_house_balances() -> dict[str, int]:
    """The market's accounts, by kind; what was granted shows as negative."""
    accounts = annotate_totals(LedgerAccount.objects.filter(organisation=None))
    return dict.fromkeys(HOUSE_KINDS, 0) | dict(accounts.values_list("kind", "total"))


def get_buyer_id(hold_reference: str) -> str:
    """The organisation that a hold's money belongs to.

    Raises
    ------
    NotFound
        ``hold_not_found``.
    """
    holds = Hold.objects.filter(reference=hold_reference)
    organisation_id = holds.values_list("organisation_id", flat=True).first()
    if organisation_id is None:
        raise NotFound("hold_not_found", f"There is no hold named {hold_reference}.")
    return organisation_id


def _load_balances(organisation: Organisation) -> dict[str, int]:
    return dict(
        LedgerAccount.objects.filter(organisation=organisation).values_list(
            "kind", "balance_micros"
        )
    )
