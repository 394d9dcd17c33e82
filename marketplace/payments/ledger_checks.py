"""Whether the books are right: the ledger recomputed from its postings, beside its other rows.

One check is of all postings and every seal; the other, of what came after the last seal, costs no
more as the ledger grows.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from django.db.models import Case, F, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce

from marketplace.accounts.models import Organisation
from marketplace.payments.account_sums import annotate_all_totals, annotate_totals
from marketplace.payments.distribution_checks import find_wrong_shares
from marketplace.payments.earning_sums import find_wrong_sums
from marketplace.payments.models import (
    MICROS_PER_CENT,
    PAYMENT_OVER,
    REFUND_SOURCES,
    AccountKind,
    CardPayment,
    CardRefund,
    Distribution,
    Earning,
    EarningKind,
    Entry,
    EntryKind,
    Hold,
    HoldStatus,
    Invoice,
    LedgerAccount,
    LedgerSeal,
    Posting,
    RefundStatus,
    Transfer,
    TransferStatus,
)
from marketplace.payments.seal_chain import find_broken_seals

#: Entries that book pay.
_PAY = (EntryKind.DISTRIBUTION, EntryKind.CHECK_PAY, EntryKind.IDLE_PAY)


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
    #: What was kept of work that was not done.
    kept_micros: int = 0

    def __add__(self, other: "SharedAsks") -> "SharedAsks":
        return SharedAsks(
            *(getattr(self, of.name) + getattr(other, of.name) for of in fields(SharedAsks))
        )


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
    #: Holds of which it is noted that they were shared out otherwise than their sealed entry says.
    wrong_shares: tuple[str, ...]
    #: Holds whose operational cost is not what providers earned and what went back to the owner.
    wrong_pay: tuple[str, ...]
    #: Holds that say another charge, refund or vendor's pay than their postings.
    wrong_charges: tuple[str, ...]
    #: References of pay that is not the sum of its earnings, and, in the whole check, organisations
    #: whose pending pay is not that of theirs, or one of their sums.
    wrong_earnings: tuple[str, ...]
    shared_asks: SharedAsks
    #: What the account of authorised amounts has beyond bids that cards have still to pay; zero.
    authorised_surplus_micros: int
    #: What the account of refunds to cards has beyond refunds on their way; zero.
    card_refund_surplus_micros: int
    #: What the account of payouts has beyond transfers on their way; zero.
    payout_surplus_micros: int
    #: What the account of taxes has beyond the tax on invoices; zero.
    tax_surplus_micros: int
    #: Where the chain of seals is broken, in words; looked for by the whole check only.
    broken_seals: tuple[str, ...] = ()


def check_ledger() -> LedgerCheck:
    """Recompute the books from all postings, and every seal."""
    return _check(is_whole=True)


def check_recent() -> LedgerCheck:
    """Check what came after the last seal; what is before it was checked when it was sealed."""
    return _check(is_whole=False)


def _check(*, is_whole: bool) -> LedgerCheck:
    entries = Entry.objects.all() if is_whole else Entry.objects.filter(unsealed__isnull=False)
    last = None if is_whole else LedgerSeal.objects.order_by("-number").first()
    asks = _sum_shared_asks(_list_references(entries, EntryKind.DISTRIBUTION))
    if last is not None:
        asks = asks + SharedAsks(**last.shared_asks)
    postings = Posting.objects.filter(entry__in=entries.values("pk"))
    total = postings.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]
    found: dict[str, Any] = {
        "imbalance_micros": total,
        "unbalanced_entries": _find_unbalanced(entries),
        "wrong_balances": _find_wrong_balances(postings, is_whole=is_whole),
        "wrong_holds": _find_wrong_holds(),
        "clearing_surplus_micros": _compute_clearing_surplus(is_whole=is_whole),
        "wrong_shares": find_wrong_shares(entries, is_whole=is_whole),
        "wrong_pay": _find_wrong_pay(entries, is_whole=is_whole),
        "wrong_charges": _find_wrong_charges(entries, is_whole=is_whole),
        "wrong_earnings": _find_wrong_earnings(entries, is_whole=is_whole),
        "authorised_surplus_micros": _compute_authorised_surplus(is_whole=is_whole),
        "card_refund_surplus_micros": _compute_card_refund_surplus(is_whole=is_whole),
        "payout_surplus_micros": _compute_payout_surplus(is_whole=is_whole),
        "tax_surplus_micros": _compute_tax_surplus(entries),
        "broken_seals": tuple(find_broken_seals()) if is_whole else (),
    }
    return LedgerCheck(
        balanced=not any(found.values()),
        entries=entries.count() + (last.entries if last else 0),
        postings=postings.count() + (last.postings if last else 0),
        shared_asks=asks,
        **found,
    )


def _list_references(entries: QuerySet[Entry], *kinds: EntryKind) -> Any:
    return entries.filter(kind__in=kinds).values("reference")


# Each comparison below is one statement, so that traffic between two cannot look like a fault.


def _find_unbalanced(entries: QuerySet[Entry]) -> tuple[str, ...]:
    sums = entries.annotate(total=Coalesce(Sum("postings__amount_micros"), 0))
    return tuple(sums.exclude(total=0).order_by("pk").values_list("pk", flat=True))


def _find_wrong_balances(postings: QuerySet[Posting], *, is_whole: bool) -> tuple[str, ...]:
    kept = LedgerAccount.objects.filter(balance_micros__isnull=False)
    if not is_whole:
        kept = kept.filter(pk__in=postings.values("account"))
    wrong = _total(kept, is_whole=is_whole).exclude(total=F("balance_micros"))
    return tuple(wrong.order_by("pk").values_list("pk", flat=True))


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


def sum_shared_asks(entry_ids: Collection[str]) -> SharedAsks:
    """Where the operational cost went that these entries shared out."""
    entries = Entry.objects.filter(pk__in=entry_ids)
    return _sum_shared_asks(_list_references(entries, EntryKind.DISTRIBUTION))


def _sum_shared_asks(references: Any) -> SharedAsks:
    sums = (
        _distributions_with_earned()
        .filter(hold__reference__in=references)
        .aggregate(
            asks=Coalesce(Sum("asks_micros"), 0),
            earned=Coalesce(Sum("earned_micros"), 0),
            returned=Coalesce(Sum("asks_returned_micros"), 0),
            borne=Coalesce(Sum("borne_pay_micros"), 0),
            kept=Coalesce(Sum("asks_kept_micros"), 0),
        )
    )
    return SharedAsks(
        asks_micros=sums["asks"],
        earned_micros=sums["earned"],
        returned_micros=sums["returned"],
        borne_micros=sums["borne"],
        kept_micros=sums["kept"],
    )


def _find_wrong_pay(entries: QuerySet[Entry], *, is_whole: bool) -> tuple[str, ...]:
    """References of holds that were shared out against the rule of pay."""
    shared = _distributions_with_earned()
    if not is_whole:
        references = _list_references(entries, EntryKind.DISTRIBUTION)
        shared = shared.filter(hold__reference__in=references)
    return tuple(
        shared.exclude(
            earned_micros=F("asks_micros")
            + F("borne_pay_micros")
            - F("asks_returned_micros")
            - F("asks_kept_micros")
        )
        .order_by("pk")
        .values_list("hold__reference", flat=True)
    )


def _find_wrong_charges(entries: QuerySet[Entry], *, is_whole: bool) -> tuple[str, ...]:
    """References of holds whose columns are not the sums of their postings."""
    own = Q(entry__reference=OuterRef("reference"))
    refunds = Q(entry__kind=EntryKind.REFUND, entry__hold_reference=OuterRef("reference"))
    kinds = (EntryKind.VENDOR_PAY, EntryKind.VENDOR_RETURN)
    holds = Hold.objects.annotate(
        charged=_sum_booked(own & Q(entry__kind=EntryKind.CHARGE), AccountKind.CLEARING),
        refunded=_sum_booked(refunds, *REFUND_SOURCES),
        vendor=_sum_booked(own & Q(entry__kind__in=kinds), AccountKind.EARNINGS_PENDING),
    )
    if not is_whole:
        holds = holds.filter(reference__in=entries.values("hold_reference"))
    right = Q(
        charged=F("charged_micros"), refunded=-F("refunded_micros"), vendor=F("vendor_micros")
    )
    return tuple(holds.exclude(right).order_by("pk").values_list("reference", flat=True))


def _sum_booked(of: Q, *kinds: AccountKind) -> Coalesce:
    booked = Posting.objects.filter(of, account__kind__in=kinds)
    total = booked.values(all_rows=Value(True)).annotate(total=Sum("amount_micros"))
    return Coalesce(Subquery(total.values("total")), 0)


def _find_wrong_earnings(entries: QuerySet[Entry], *, is_whole: bool) -> tuple[str, ...]:
    """References of entries that booked other pay than their earnings, and whose sum is not."""
    by_vendor = Q(entry__kind=EntryKind.VENDOR_PAY)
    for_idle = Q(entry__kind=EntryKind.IDLE_PAY)
    earned = Earning.objects.filter(
        reference=OuterRef("entry__reference"), organisation=OuterRef("account__organisation")
    )
    own_kinds = (EarningKind.VENDOR, EarningKind.IDLE)
    of_vendor, of_idle, of_others = (
        lines.values("reference").annotate(total=Sum("amount_micros")).values("total")
        for lines in (
            *(earned.filter(kind=kind) for kind in own_kinds),
            earned.exclude(kind__in=own_kinds),
        )
    )
    paid = Posting.objects.filter(
        by_vendor | Q(entry__kind__in=_PAY),
        account__kind=AccountKind.EARNINGS_PENDING,
    )
    if not is_whole:
        paid = paid.filter(entry__in=entries.values("pk"))
    earned_micros = Case(
        When(by_vendor, then=Subquery(of_vendor)),
        When(for_idle, then=Subquery(of_idle)),
        default=Subquery(of_others),
    )
    wrong = paid.annotate(earned_micros=Coalesce(earned_micros, 0)).exclude(
        amount_micros=F("earned_micros")
    )
    found = tuple(wrong.order_by("pk").values_list("entry__reference", flat=True))
    if not is_whole:
        return found
    return found + tuple(sorted({*_find_wrong_pending(), *find_wrong_sums()}))


def _find_wrong_pending() -> tuple[str, ...]:
    """Organisations whose pending account is not the sum of their pending earnings."""
    pending = (
        Earning.objects.filter(
            organisation=OuterRef("organisation"), matured_at=None, returned_at=None
        )
        .values("organisation")
        .annotate(total=Sum("amount_micros"))
        .values("total")
    )
    accounts = LedgerAccount.objects.filter(kind=AccountKind.EARNINGS_PENDING)
    wrong = accounts.annotate(earned_micros=Coalesce(Subquery(pending), 0)).exclude(
        balance_micros=F("earned_micros")
    )
    return tuple(wrong.order_by("pk").values_list("organisation", flat=True))


def _compute_clearing_surplus(*, is_whole: bool) -> int:
    undistributed = (
        Hold.objects.filter(status=HoldStatus.CHARGED, distributed_at__isnull=True)
        .exclude(charged_micros=F("refunded_micros") + F("vendor_micros"))
        .values("status")
        .annotate(total=Sum(F("charged_micros") - F("refunded_micros") - F("vendor_micros")))
        .values("total")
    )
    return _sum_with(
        AccountKind.CLEARING, F("total") - Coalesce(Subquery(undistributed), 0), is_whole=is_whole
    )


def _compute_authorised_surplus(*, is_whole: bool) -> int:
    """What is authorised is owed by cards: amounts held, or prices that are not captured yet."""
    open_payments = CardPayment.objects.exclude(status__in=PAYMENT_OVER).values("pk")
    held = Q(status=HoldStatus.HELD)
    owed = (
        Hold.objects.filter(card_payment__in=open_payments)
        .exclude(status=HoldStatus.RELEASED)
        .values(by_card=Value(True))
        .annotate(total=Sum(Case(When(held, then=F("amount_micros")), default=F("charged_micros"))))
        .values("total")
    )
    return _sum_with(
        AccountKind.AUTHORISED, F("total") + Coalesce(Subquery(owed), 0), is_whole=is_whole
    )


def _compute_card_refund_surplus(*, is_whole: bool) -> int:
    waiting = CardRefund.objects.filter(status=RefundStatus.WAITING)
    return _compute_surplus_over(waiting, AccountKind.CARD_REFUNDS, is_whole=is_whole)


def _compute_payout_surplus(*, is_whole: bool) -> int:
    waiting = Transfer.objects.filter(status=TransferStatus.WAITING)
    return _compute_surplus_over(waiting, AccountKind.PAYOUTS, is_whole=is_whole)


def _compute_tax_surplus(entries: QuerySet[Entry]) -> int:
    taxed = entries.filter(kind=EntryKind.TAX)
    booked = Posting.objects.filter(account__kind=AccountKind.TAXES, entry__in=taxed.values("pk"))
    invoiced = Invoice.objects.filter(number__in=taxed.values("reference"))
    due = invoiced.values(all_rows=Value(True)).annotate(total=Sum("tax_micros")).values("total")
    return booked.aggregate(surplus=Coalesce(Sum("amount_micros"), 0) - Coalesce(Subquery(due), 0))[
        "surplus"
    ]


def _compute_surplus_over(waiting: QuerySet[Any], kind: AccountKind, *, is_whole: bool) -> int:
    """What an account has beyond the cents of these rows, all of one status."""
    by_status = waiting.values("status")
    due = by_status.annotate(total=Sum("amount_cents") * MICROS_PER_CENT).values("total")
    return _sum_with(kind, F("total") - Coalesce(Subquery(due), 0), is_whole=is_whole)


def _sum_with(kind: AccountKind, expression: Combinable, *, is_whole: bool) -> int:
    """An account of the market compared with other rows; 0 before it exists."""
    accounts = _total(LedgerAccount.objects.filter(kind=kind), is_whole=is_whole)
    return accounts.annotate(surplus=expression).values_list("surplus", flat=True).first() or 0


def _total(accounts: QuerySet[LedgerAccount], *, is_whole: bool) -> QuerySet[LedgerAccount]:
    return annotate_all_totals(accounts) if is_whole else annotate_totals(accounts)
