"""What one may know about money. All amounts are micro-dollars."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from django.db.models import Case, F, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound
from marketplace.payments.gateway_models import (
    MICROS_PER_CENT,
    CardPayment,
    CardRefund,
    PaymentStatus,
    RefundStatus,
)
from marketplace.payments.invoice_models import Invoice
from marketplace.payments.locks import WALLET_KINDS
from marketplace.payments.models import (
    HOUSE_KINDS,
    AccountKind,
    Distribution,
    Earning,
    EarningKind,
    Entry,
    Hold,
    HoldStatus,
    LedgerAccount,
    Posting,
)
from marketplace.payments.payout_models import Transfer, TransferStatus


@dataclass(frozen=True, slots=True)
class Wallet:
    #: What the organisation may bid with.
    available_micros: int
    #: What its undecided bids hold.
    held_micros: int


class Spender(NamedTuple):
    """Whose caps a hold counts for."""

    placed_by_id: str | None
    api_key_id: str | None


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


@dataclass(frozen=True, slots=True)
class SharedAsks:
    """The operational cost of all jobs that have ended, and where it went.

    ``asks_micros + borne_micros`` is ``earned_micros + returned_micros``.
    """

    #: What owners paid for it.
    asks_micros: int
    #: What executors of work earned.
    earned_micros: int
    #: What went back to owners.
    returned_micros: int
    #: What the house added for work of jobs that it refunded.
    borne_micros: int


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """Whether the books are right, and where they are not."""

    #: Everything below is as it should be.
    balanced: bool
    #: The sum of all postings; zero.
    imbalance_micros: int
    entries: int
    postings: int
    #: Entries whose postings do not sum to zero.
    unbalanced_entries: tuple[str, ...]
    #: Accounts whose kept balance is not the sum of their postings.
    wrong_balances: tuple[str, ...]
    #: Organisations whose open holds do not add up to what their wallet holds.
    wrong_holds: tuple[str, ...]
    #: What the clearing account has beyond the charges still to be shared out; zero.
    clearing_surplus_micros: int
    #: Holds whose operational cost is not what providers earned and what went back to the owner.
    wrong_pay: tuple[str, ...]
    #: Holds that say another amount of a vendor's pay than the vendor earned.
    wrong_vendor_pay: tuple[str, ...]
    shared_asks: SharedAsks
    #: What the account of authorised amounts has beyond bids that cards have still to pay; zero.
    authorised_surplus_micros: int
    #: What the account of refunds to cards has beyond refunds on their way; zero.
    card_refund_surplus_micros: int
    #: What the account of payouts has beyond transfers on their way; zero.
    payout_surplus_micros: int
    #: What the account of taxes has beyond the tax on invoices; zero.
    tax_surplus_micros: int


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


def measure_refundable(*, hold_reference: str) -> int:
    """Micro-dollars of a charge that were not refunded yet."""
    hold = Hold.objects.get(reference=hold_reference)
    return (hold.charged_micros or 0) - hold.refunded_micros


def find_distribution(*, hold_reference: str) -> Distribution | None:
    """How a payment's operational cost was shared out; ``None`` before it was."""
    return Distribution.objects.filter(hold__reference=hold_reference).first()


def list_fees(*, hold_reference: str) -> list[Earning]:
    """What others than providers earned with one payment: a vendor, the owner of a donor."""
    fees = Earning.objects.filter(reference=hold_reference, returned_at=None).exclude(
        kind=EarningKind.PROVIDER
    )
    return list(fees.select_related("organisation").order_by("pk"))


def find_returned_fee(*, hold_reference: str) -> Earning | None:
    """What a vendor earned with one payment and lost in a dispute."""
    return Earning.objects.filter(reference=hold_reference, returned_at__isnull=False).first()


def find_card_payment_of(*, hold_reference: str) -> CardPayment | None:
    """The card payment behind a hold; ``None`` where the wallet holds the money."""
    return CardPayment.objects.filter(hold__reference=hold_reference).first()


def sum_borne(*, at_fault_id: str, since: datetime) -> int:
    """What the house bore for the faults of a provider since a moment."""
    borne = Distribution.objects.filter(at_fault=at_fault_id, made_at__gte=since)
    return borne.aggregate(
        total=Coalesce(Sum(F("borne_pay_micros") + F("borne_credit_micros")), 0)
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
    after_micros = postings.filter(account__kind=AccountKind.WALLET_AVAILABLE).aggregate(
        total=Coalesce(Sum("amount_micros"), 0)
    )["total"]
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
    """The house's accounts, by kind; what was granted shows as negative."""
    found = (
        Posting.objects.filter(account__organisation=None)
        .values_list("account__kind")
        .annotate(total=Sum("amount_micros"))
    )
    return dict.fromkeys(HOUSE_KINDS, 0) | dict(found)


def get_buyer_id(hold_reference: str) -> str:
    """The organisation whose money a hold holds.

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


def check_ledger() -> LedgerCheck:
    """Recomputes the books from their postings."""
    total = Posting.objects.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]
    unbalanced = tuple(
        Entry.objects.annotate(total=Coalesce(Sum("postings__amount_micros"), 0))
        .exclude(total=0)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    wrong_balances = tuple(
        LedgerAccount.objects.filter(balance_micros__isnull=False)
        .annotate(total=Coalesce(Sum("postings__amount_micros"), 0))
        .exclude(total=F("balance_micros"))
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    wrong_holds = _find_wrong_holds()
    clearing_surplus = _compute_clearing_surplus()
    wrong_vendor_pay = _find_wrong_vendor_pay()
    wrong_pay = _find_wrong_pay()
    authorised_surplus = _compute_authorised_surplus()
    card_refund_surplus = _compute_card_refund_surplus()
    payout_surplus = _compute_payout_surplus()
    tax_surplus = _compute_tax_surplus()
    return LedgerCheck(
        balanced=not (
            total
            or unbalanced
            or wrong_balances
            or wrong_holds
            or clearing_surplus
            or wrong_pay
            or wrong_vendor_pay
            or authorised_surplus
            or card_refund_surplus
            or payout_surplus
            or tax_surplus
        ),
        imbalance_micros=total,
        entries=Entry.objects.count(),
        postings=Posting.objects.count(),
        unbalanced_entries=unbalanced,
        wrong_balances=wrong_balances,
        wrong_holds=wrong_holds,
        clearing_surplus_micros=clearing_surplus,
        wrong_pay=wrong_pay,
        wrong_vendor_pay=wrong_vendor_pay,
        shared_asks=_sum_shared_asks(),
        authorised_surplus_micros=authorised_surplus,
        card_refund_surplus_micros=card_refund_surplus,
        payout_surplus_micros=payout_surplus,
        tax_surplus_micros=tax_surplus,
    )


# Each comparison below is one statement, so that traffic between two cannot look like a fault.


def _find_wrong_holds() -> tuple[str, ...]:
    held = LedgerAccount.objects.filter(
        organisation=OuterRef("pk"), kind=AccountKind.WALLET_HELD
    ).values("balance_micros")
    holds = (
        Hold.objects.filter(organisation=OuterRef("pk"), status=HoldStatus.HELD)
        .values("organisation")
        .annotate(total=Sum("amount_micros"))
        .values("total")
    )
    return tuple(
        Organisation.objects.annotate(
            held_micros=Coalesce(Subquery(held), 0), holds_micros=Coalesce(Subquery(holds), 0)
        )
        .exclude(held_micros=F("holds_micros"))
        .order_by("pk")
        .values_list("pk", flat=True)
    )


def _distributions_with_earned() -> QuerySet[Distribution]:
    """Each with ``earned_micros``: what providers earned with its hold."""
    earned = (
        Earning.objects.filter(kind=EarningKind.PROVIDER, reference=OuterRef("hold__reference"))
        .values("reference")
        .annotate(total=Sum("amount_micros"))
        .values("total")
    )
    return Distribution.objects.annotate(earned_micros=Coalesce(Subquery(earned), 0))


def _sum_shared_asks() -> SharedAsks:
    sums = _distributions_with_earned().aggregate(
        asks=Coalesce(Sum("asks_micros"), 0),
        earned=Coalesce(Sum("earned_micros"), 0),
        returned=Coalesce(Sum("asks_returned_micros"), 0),
        borne=Coalesce(Sum("borne_pay_micros"), 0),
    )
    return SharedAsks(
        asks_micros=sums["asks"],
        earned_micros=sums["earned"],
        returned_micros=sums["returned"],
        borne_micros=sums["borne"],
    )


def _find_wrong_pay() -> tuple[str, ...]:
    """References of holds that were shared out against the rule of pay."""
    return tuple(
        _distributions_with_earned()
        .exclude(earned_micros=F("asks_micros") + F("borne_pay_micros") - F("asks_returned_micros"))
        .order_by("pk")
        .values_list("hold__reference", flat=True)
    )


def _find_wrong_vendor_pay() -> tuple[str, ...]:
    """References of holds out of which a vendor earned another amount than the hold says."""
    earned = (
        Earning.objects.filter(
            kind=EarningKind.VENDOR, returned_at=None, reference=OuterRef("reference")
        )
        .values("reference")
        .annotate(total=Sum("amount_micros"))
        .values("total")
    )
    return tuple(
        Hold.objects.annotate(earned_micros=Coalesce(Subquery(earned), 0))
        .exclude(earned_micros=F("vendor_micros"))
        .order_by("pk")
        .values_list("reference", flat=True)
    )


def _compute_clearing_surplus() -> int:
    undistributed = (
        Hold.objects.filter(status=HoldStatus.CHARGED, distributed_at__isnull=True)
        .values("status")
        .annotate(total=Sum(F("charged_micros") - F("refunded_micros") - F("vendor_micros")))
        .values("total")
    )
    surplus = (
        LedgerAccount.objects.filter(kind=AccountKind.CLEARING)
        .annotate(total=Coalesce(Sum("postings__amount_micros"), 0))
        .annotate(surplus=F("total") - Coalesce(Subquery(undistributed), 0))
        .values_list("surplus", flat=True)
        .first()
    )
    return surplus or 0


def _compute_authorised_surplus() -> int:
    """What is authorised is owed by cards: amounts held, or prices that are not captured yet."""
    held = Q(status=HoldStatus.HELD)
    due = Q(status=HoldStatus.CHARGED) & ~Q(
        card_payment__status__in=[PaymentStatus.PAID, PaymentStatus.UNCOLLECTED]
    )
    owed = (
        Hold.objects.filter(held | due, card_payment__isnull=False)
        .values(by_card=Value(True))
        .annotate(total=Sum(Case(When(held, then=F("amount_micros")), default=F("charged_micros"))))
        .values("total")
    )
    surplus = _sum_with(AccountKind.AUTHORISED, F("total") + Coalesce(Subquery(owed), 0))
    return surplus or 0


def _compute_card_refund_surplus() -> int:
    waiting = CardRefund.objects.filter(status=RefundStatus.WAITING)
    return _compute_surplus_over(waiting, AccountKind.CARD_REFUNDS)


def _compute_payout_surplus() -> int:
    waiting = Transfer.objects.filter(status=TransferStatus.WAITING)
    return _compute_surplus_over(waiting, AccountKind.PAYOUTS)


def _compute_tax_surplus() -> int:
    invoiced = Invoice.objects.aggregate(total=Coalesce(Sum("tax_micros"), 0))["total"]
    booked = Posting.objects.filter(account__kind=AccountKind.TAXES)
    return booked.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"] - invoiced


def _compute_surplus_over(waiting: QuerySet[Any], kind: AccountKind) -> int:
    """What an account has beyond the cents of these rows, all of one status."""
    by_status = waiting.values("status")
    due = by_status.annotate(total=Sum("amount_cents") * MICROS_PER_CENT).values("total")
    return _sum_with(kind, F("total") - Coalesce(Subquery(due), 0)) or 0


def _sum_with(kind: AccountKind, expression: Combinable) -> int | None:
    """An account of the house compared with other rows; ``None`` before it exists."""
    return (
        LedgerAccount.objects.filter(kind=kind)
        .annotate(total=Coalesce(Sum("postings__amount_micros"), 0))
        .annotate(surplus=expression)
        .values_list("surplus", flat=True)
        .first()
    )


def _load_balances(organisation: Organisation) -> dict[str, int]:
    return dict(
        LedgerAccount.objects.filter(organisation=organisation).values_list(
            "kind", "balance_micros"
        )
    )
