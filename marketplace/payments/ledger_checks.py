"""Whether the books are right: the ledger recomputed from its postings, beside its other rows."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Case, F, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce

from marketplace.accounts.models import Organisation
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardRefund,
    Distribution,
    Earning,
    EarningKind,
    Entry,
    Hold,
    HoldStatus,
    Invoice,
    LedgerAccount,
    PaymentStatus,
    Posting,
    RefundStatus,
    Transfer,
    TransferStatus,
)


@dataclass(frozen=True, slots=True)
class SharedAsks:
    """The operational cost of all jobs that have ended, and where it went.

    ``asks_micros + borne_micros`` is ``earned_micros + returned_micros + kept_micros``.
    """

    #: What owners paid for it.
    asks_micros: int
    #: What executors of work earned.
    earned_micros: int
    #: What went back to owners.
    returned_micros: int
    #: What the market added for work of jobs that it refunded.
    borne_micros: int
    #: What was kept as part of reservation fees.
    kept_micros: int = 0


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
    #: Accounts whose stored balance is not the sum of their postings.
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
    #: What the account of reservation fees has beyond those of ended jobs; zero.
    fee_surplus_micros: int


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
    fee_surplus = _compute_fee_surplus()
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
            or fee_surplus
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
        fee_surplus_micros=fee_surplus,
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
        kept=Coalesce(Sum("asks_kept_micros"), 0),
    )
    return SharedAsks(
        asks_micros=sums["asks"],
        earned_micros=sums["earned"],
        returned_micros=sums["returned"],
        borne_micros=sums["borne"],
        kept_micros=sums["kept"],
    )


def _find_wrong_pay() -> tuple[str, ...]:
    """References of holds that were shared out against the rule of pay."""
    return tuple(
        _distributions_with_earned()
        .exclude(
            earned_micros=F("asks_micros")
            + F("borne_pay_micros")
            - F("asks_returned_micros")
            - F("asks_kept_micros")
        )
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


def _compute_fee_surplus() -> int:
    fees = Distribution.objects.values(of_all=Value(True))
    kept = fees.annotate(total=Sum("reservation_fee_micros")).values("total")
    return _sum_with(AccountKind.RESERVATION_FEES, F("total") - Coalesce(Subquery(kept), 0)) or 0


def _compute_surplus_over(waiting: QuerySet[Any], kind: AccountKind) -> int:
    """What an account has beyond the cents of these rows, all of one status."""
    by_status = waiting.values("status")
    due = by_status.annotate(total=Sum("amount_cents") * MICROS_PER_CENT).values("total")
    return _sum_with(kind, F("total") - Coalesce(Subquery(due), 0)) or 0


def _sum_with(kind: AccountKind, expression: Combinable) -> int | None:
    """An account of the market compared with other rows; ``None`` before it exists."""
    return (
        LedgerAccount.objects.filter(kind=kind)
        .annotate(total=Coalesce(Sum("postings__amount_micros"), 0))
        .annotate(surplus=expression)
        .values_list("surplus", flat=True)
        .first()
    )
