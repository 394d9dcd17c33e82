"""What providers and vendors are owed: shared out at completion, payable after a delay."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from marketplace.common.errors import Conflict
from marketplace.payments.holds import HoldSettlement, settle_holds
from marketplace.payments.ledger import Account, house, post_entry
from marketplace.payments.locks import lock_accounts, lock_hold, lock_shares
from marketplace.payments.models import (
    AccountKind,
    Distribution,
    Earning,
    EarningKind,
    Entry,
    EntryKind,
    Hold,
    HoldStatus,
)
from marketplace.payments.selectors import get_buyer_id
from marketplace.payments.self_dealing import find_contestable_until


@dataclass(frozen=True, slots=True)
class Share:
    """A provider's part of a payment, or the royalty of a donor's owner."""

    organisation_id: str
    amount_micros: int
    kind: EarningKind = EarningKind.PROVIDER


@dataclass(frozen=True, slots=True)
class CostSplit:
    """How the operational cost in one payment is shared out, to the micro-dollar.

    ``asks_micros + borne_pay_micros`` is what providers get, what went back to the owner and what
    was kept of work that was not done.
    """

    #: The operational cost in the payment.
    asks_micros: int
    #: Of it, what went back to the owner, with a refund or in a credit.
    asks_returned_micros: int
    shares: tuple[Share, ...]
    #: Of what went back, the part that pays for a credit.
    credit_withheld_micros: int = 0
    #: Pay that the market adds for the work of a job it refunded.
    borne_pay_micros: int = 0
    #: The part of a credit that the market pays.
    borne_credit_micros: int = 0
    #: The part of a refund that a vendor keeps; the market pays it to the owner.
    borne_vendor_micros: int = 0
    #: Kept of the price of a job that its owner ended, beyond the work that was done.
    kept_micros: int = 0
    #: Of that, the part that was operational cost.
    asks_kept_micros: int = 0
    #: The house's fee for the work that was done.
    house_fee_micros: int = 0
    #: The provider whose fault it was, if it was one's.
    at_fault_id: str | None = None

    def __post_init__(self) -> None:
        amounts = (
            self.asks_micros,
            self.asks_returned_micros,
            self.credit_withheld_micros,
            self.borne_pay_micros,
            self.borne_credit_micros,
            self.borne_vendor_micros,
            self.asks_kept_micros,
            self.house_fee_micros,
            self.kept_micros - self.asks_kept_micros,
            *(share.amount_micros for share in self.shares),
        )
        if min(amounts) < 0:
            raise ValueError(f"no part of a split can be negative: {self}")
        paid = sum(s.amount_micros for s in self.shares if s.kind == EarningKind.PROVIDER)
        unpaid = self.asks_returned_micros + self.asks_kept_micros
        if self.asks_micros + self.borne_pay_micros != paid + unpaid:
            raise ValueError(f"the parts do not add up to the operational cost: {self}")


def charge_and_distribute(
    *, hold_reference: str, charge_micros: int, split: CostSplit, now: datetime
) -> None:
    """Charge a hold and share the charge out at once, for what is made and paid in one step.

    Raises
    ------
    NotFound, UserError, Conflict
        As ``settle_holds``.
    """
    with transaction.atomic():
        # All at once: charging locks the buyer's wallet, and sharing out what comes before it.
        lock_shares(
            hold_reference=hold_reference,
            buyer_id=get_buyer_id(hold_reference),
            earner_ids=[share.organisation_id for share in split.shares],
        )
        settle_holds(settlements=[HoldSettlement(hold_reference, charge_micros)], now=now)
        distribute_charge(hold_reference=hold_reference, split=split, now=now)


def distribute_charge(*, hold_reference: str, split: CostSplit, now: datetime) -> Hold:
    """Share a winner's payment out, once: what others get, and what the market keeps.

    Raises
    ------
    Conflict
        ``not_charged``: the hold was not charged.
    ValueError
        The split takes more than is left of the charge.
    """
    totals: defaultdict[tuple[str, EarningKind], int] = defaultdict(int)
    for share in split.shares:
        totals[share.organisation_id, share.kind] += share.amount_micros
    totals_paid = {key: amount for key, amount in totals.items() if amount}
    organisation_id = get_buyer_id(hold_reference)
    with transaction.atomic():
        locked = lock_shares(
            hold_reference=hold_reference,
            buyer_id=organisation_id,
            earner_ids=[pk for pk, _ in totals_paid],
        )
        hold = lock_hold(hold_reference)
        if hold.distributed_at is not None:
            return hold
        if hold.status != HoldStatus.CHARGED:
            raise Conflict("not_charged", "Nothing was charged, so nothing can be shared out.")
        amounts = _list_distribution_amounts(
            left_micros=hold.charged_micros - hold.refunded_micros - hold.vendor_micros,
            vendor_micros=hold.vendor_micros,
            totals_paid=totals_paid,
            split=split,
        )
        shared = Distribution(
            hold=hold,
            asks_micros=split.asks_micros,
            asks_returned_micros=split.asks_returned_micros,
            borne_pay_micros=split.borne_pay_micros,
            borne_credit_micros=split.borne_credit_micros,
            borne_vendor_micros=split.borne_vendor_micros,
            asks_kept_micros=split.asks_kept_micros,
            at_fault_id=split.at_fault_id,
            made_at=now,
        )
        if any(amounts.values()):
            post_entry(
                kind=EntryKind.DISTRIBUTION,
                reference=hold_reference,
                hold_reference=hold_reference,
                amounts=amounts,
                locked=locked,
                now=now,
                memo=shared.described,
            )
        for (pk, kind), amount in totals_paid.items():
            create_earning(
                organisation_id=pk,
                kind=kind,
                reference=hold_reference,
                amount_micros=amount,
                buyer_id=organisation_id,
                now=now,
            )
        shared.save(force_insert=True)
        hold.distributed_at = now
        hold.save(update_fields=["distributed_at"])
    return hold


def _list_distribution_amounts(
    *,
    left_micros: int,
    vendor_micros: int,
    totals_paid: Mapping[tuple[str, EarningKind], int],
    split: CostSplit,
) -> dict[Account, int]:
    """What each account gains; the revenue is what is left of the payment, never a debt."""
    amounts: defaultdict[Account, int] = defaultdict(int)
    for (pk, _), amount in totals_paid.items():
        amounts[Account(pk, AccountKind.EARNINGS_PENDING)] += amount
    amounts[house(AccountKind.CLEARING)] = -left_micros
    amounts[house(AccountKind.REFUNDS)] = -split.borne_pay_micros
    amounts[house(AccountKind.SLA_CREDITS)] = split.credit_withheld_micros
    amounts[house(AccountKind.CONGESTION)] = split.kept_micros
    revenue_micros = -sum(amounts.values())
    # A vendor whose work was accepted keeps its pay: what a refund of the whole payment, or a
    # vendor that asks more than the one sold, leaves uncovered is borne by the market.
    borne = min(max(0, -revenue_micros), vendor_micros)
    amounts[house(AccountKind.REFUNDS)] -= borne
    revenue_micros += borne
    if revenue_micros < 0:
        raise ValueError(f"{split} takes more than the {left_micros} that are left of the charge")
    # What a credit takes, the fee does not come to.
    fee_micros = min(split.house_fee_micros, revenue_micros)
    amounts[house(AccountKind.HOUSE_FEES)] = fee_micros
    amounts[house(AccountKind.REVENUE)] = revenue_micros - fee_micros
    return amounts


def pay_vendor(
    *,
    hold_reference: str,
    organisation_id: str,
    amount_micros: int,
    disputable_until: datetime,
    now: datetime,
) -> Hold:
    """Pay a labour vendor for accepted work out of a charge, once for each hold.

    It is not paid out while the work may still be disputed, however short the delay of payouts.

    Raises
    ------
    Conflict
        ``not_charged``, or ``already_distributed``: the payment was shared out before.
    """
    buyer_id = get_buyer_id(hold_reference)
    with transaction.atomic():
        locked = lock_shares(
            hold_reference=hold_reference, buyer_id=buyer_id, earner_ids=[organisation_id]
        )
        hold = lock_hold(hold_reference)
        if hold.vendor_micros or not amount_micros:
            return hold
        if hold.status != HoldStatus.CHARGED:
            raise Conflict("not_charged", "Nothing was charged, so no vendor can be paid.")
        if hold.distributed_at is not None:
            raise Conflict("already_distributed", "The payment was shared out before.")
        post_entry(
            kind=EntryKind.VENDOR_PAY,
            reference=hold_reference,
            hold_reference=hold_reference,
            amounts={
                house(AccountKind.CLEARING): -amount_micros,
                Account(organisation_id, AccountKind.EARNINGS_PENDING): amount_micros,
            },
            locked=locked,
            now=now,
        )
        create_earning(
            organisation_id=organisation_id,
            kind=EarningKind.VENDOR,
            reference=hold_reference,
            amount_micros=amount_micros,
            payable_from=disputable_until,
            buyer_id=buyer_id,
            now=now,
        )
        hold.vendor_micros = amount_micros
        hold.save(update_fields=["vendor_micros"])
    return hold


def withhold_vendor_pay(*, hold_reference: str, now: datetime) -> None:
    """Keep a vendor's pay from maturing while its work is disputed.

    Raises
    ------
    Conflict
        ``not_withheld``: there is none, or it can be paid out already.
    """
    earning = _find_vendor_earning(hold_reference)
    with transaction.atomic():
        if earning is not None:
            lock_accounts([(earning.organisation_id, AccountKind.EARNINGS_PENDING)])
            open_one = Earning.objects.filter(pk=earning.pk, matured_at=None, returned_at=None)
            if open_one.update(withheld_at=now):
                return
    raise Conflict("not_withheld", "The vendor has been paid out for this work.")


def release_vendor_pay(*, hold_reference: str) -> None:
    """Let a vendor's pay mature, which a dispute kept back; twice changes nothing."""
    earning = _find_vendor_earning(hold_reference)
    if earning is not None and earning.returned_at is None:
        Earning.objects.filter(pk=earning.pk).update(withheld_at=None)


def return_vendor_pay(*, hold_reference: str, now: datetime) -> int:
    """Take back what a vendor earned with work that a dispute found wanting, once.

    It goes to the market, and ``refund_charge`` gives it to the owner. Until the payment was
    shared out, its share cannot be separated from what goes back for other reasons.

    Returns
    -------
    int
        The amount, which is 0 the second time.

    Raises
    ------
    Conflict
        ``not_withheld``, or ``not_settled``: the payment was not shared out yet.
    """
    earning = _find_vendor_earning(hold_reference)
    if earning is None or earning.returned_at is not None:
        return 0
    if earning.withheld_at is None or earning.matured_at is not None:
        raise Conflict("not_withheld", "Nothing of the vendor's pay was kept back.")
    buyer_id = get_buyer_id(hold_reference)
    with transaction.atomic():
        locked = lock_shares(
            hold_reference=hold_reference,
            buyer_id=buyer_id,
            earner_ids=[earning.organisation_id],
        )
        hold = lock_hold(hold_reference)
        if not hold.vendor_micros:
            return 0
        if hold.distributed_at is None:
            raise Conflict(
                "not_settled", "The job is not settled. Decide for its owner once it has ended."
            )
        amount = earning.amount_micros
        post_entry(
            kind=EntryKind.VENDOR_RETURN,
            reference=hold_reference,
            hold_reference=hold_reference,
            amounts={
                Account(earning.organisation_id, AccountKind.EARNINGS_PENDING): -amount,
                house(AccountKind.REFUNDS): amount,
            },
            locked=locked,
            now=now,
        )
        Earning.objects.filter(pk=earning.pk).update(returned_at=now)
        hold.vendor_micros = 0
        hold.save(update_fields=["vendor_micros"])
    return amount


def _find_vendor_earning(hold_reference: str) -> Earning | None:
    return Earning.objects.filter(kind=EarningKind.VENDOR, reference=hold_reference).first()


def pay_for_check(
    *, check_id: str, organisation_id: str, amount_micros: int, now: datetime
) -> None:
    """Pay a provider out of the market's revenue, once, for training another one's steps again.

    Call in a transaction.
    """
    paid = Entry.objects.filter(kind=EntryKind.CHECK_PAY, reference=check_id)
    if amount_micros <= 0 or paid.exists():
        return
    pending = AccountKind.EARNINGS_PENDING
    post_entry(
        kind=EntryKind.CHECK_PAY,
        reference=check_id,
        amounts={
            house(AccountKind.REVENUE): -amount_micros,
            Account(organisation_id, pending): amount_micros,
        },
        locked=lock_accounts([(organisation_id, pending)]),
        now=now,
    )
    create_earning(
        organisation_id=organisation_id,
        kind=EarningKind.PROVIDER,
        reference=check_id,
        amount_micros=amount_micros,
        now=now,
    )


def create_earning(
    *,
    organisation_id: str,
    kind: EarningKind,
    reference: str,
    amount_micros: int,
    payable_from: datetime | None = None,
    buyer_id: str | None = None,
    now: datetime,
) -> Earning:
    """Add a line to what an organisation earned; the caller books it in the same transaction."""
    contestable_until = None
    if buyer_id is not None:
        contestable_until = find_contestable_until(
            buyer_id=buyer_id, earner_id=organisation_id, now=now
        )
    payable_at = now + timedelta(days=settings.PAYOUT_DELAY_DAYS)
    return Earning.objects.create(
        organisation_id=organisation_id,
        kind=kind,
        reference=reference,
        amount_micros=amount_micros,
        accrued_at=now,
        payable_at=max(payable_at, payable_from or payable_at, contestable_until or payable_at),
        contestable_until_at=contestable_until,
    )
