"""Whether the gateway has the money that the ledger says: compared movement by movement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Sum

from marketplace.common.money import format_usd_exact
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import book_fee
from marketplace.payments.locks import lock_comparison
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardPayment,
    EntryKind,
    GatewayComparison,
    Posting,
    Transfer,
)
from marketplace.payments.stripe_gateway import Movement

#: Names of the kinds of differences.
MISSING_HERE, MISSING_THERE, OTHER_AMOUNT = "not in the ledger", "not at the gateway", "differs"
#: Movements between the gateway and the operator's own bank: no buyer's or provider's money.
_OWN_BANK = ("payout", "payout_cancel", "payout_failure", "topup", "topup_reversal")
#: Movements that are nothing but a fee.
_FEES = ("stripe_fee", "stripe_fx_fee", "tax_fee")


@dataclass(frozen=True, slots=True)
class Difference:
    """One movement on which the gateway and the ledger differ."""

    #: The gateway's object, or our row.
    reference: str
    what: str
    ledger_micros: int
    gateway_micros: int

    def __str__(self) -> str:
        ledger, there = map(format_usd_exact, (self.ledger_micros, self.gateway_micros))
        return f"{self.reference} {self.what}: ledger {ledger}, gateway {there}."


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Both balances, and where they part."""

    #: What the ledger says lies at the gateway.
    ledger_micros: int
    #: What lies there, and what the operator took to its own bank.
    gateway_micros: int
    movements: int
    differences: tuple[Difference, ...]

    @property
    def is_right(self) -> bool:
        return not self.differences and self.ledger_micros == self.gateway_micros

    def list_problems(self) -> list[str]:
        """In words; one that lasts reads the same the next time."""
        gap = self.ledger_micros - self.gateway_micros
        problems = [str(difference) for difference in self.differences]
        if gap:
            side = "the gateway" if gap > 0 else "the ledger"
            problems.append(f"{format_usd_exact(abs(gap))} is missing in {side}.")
        return problems


def reconcile() -> Reconciliation:
    """Compare all movements; call outside of any transaction.

    Calls that are under way show as differences for as long as they take.
    """
    return _reconcile(gateway.list_movements())


def compare_with_gateway(*, now: datetime) -> GatewayComparison:
    """Book the gateway's new fees, compare, and store the result.

    Call outside of any transaction. Only what the comparison before found as well is a problem:
    the rest may be under way.
    """
    movements = gateway.list_movements()
    for movement in movements:
        _book_fee_of(movement, now=now)
    problems = _reconcile(movements).list_problems()
    with transaction.atomic():
        comparison = lock_comparison()
        comparison.lasting = [text for text in problems if text in comparison.problems]
        comparison.problems, comparison.made_at = problems, now
        comparison.save()
    return comparison


def _book_fee_of(movement: Movement, *, now: datetime) -> None:
    """Book a charge's fee once, and any other under the movement's own id."""
    fee = -movement.amount_cents if movement.kind in _FEES else movement.fee_cents
    if not fee or movement.kind in _OWN_BANK:
        return
    is_charge = movement.kind == "charge"
    reference = movement.source_id if is_charge else movement.gateway_id
    with transaction.atomic():
        if is_charge and not CardPayment.objects.filter(charge_id=reference).update(fee_cents=fee):
            return
        book_fee(reference=reference, fee_cents=fee, now=now)


def _reconcile(movements: Sequence[Movement]) -> Reconciliation:
    posted = -(
        Posting.objects.filter(account__kind=AccountKind.GATEWAY).aggregate(
            total=Sum("amount_micros")
        )["total"]
        or 0
    )
    there = sum(found.net_cents for found in movements if found.kind not in _OWN_BANK)
    return Reconciliation(
        ledger_micros=posted,
        gateway_micros=there * MICROS_PER_CENT,
        movements=len(movements),
        differences=tuple(_compare(movements)),
    )


def _compare(movements: Iterable[Movement]) -> Iterable[Difference]:
    """Charges and transfers by the gateway's id; everything else shows in the balances."""
    there = {
        found.source_id: found.amount_cents * MICROS_PER_CENT
        for found in movements
        if found.kind in ("charge", "transfer")
    }
    here = _load_ours()
    for reference in sorted(there.keys() | here.keys()):
        ours, theirs = here.get(reference), there.get(reference)
        if ours != theirs:
            what = (
                MISSING_HERE if ours is None else MISSING_THERE if theirs is None else OTHER_AMOUNT
            )
            yield Difference(reference, what, ours or 0, theirs or 0)


def _load_ours() -> dict[str, int]:
    """What the ledger booked, by the gateway's id: positive is more at the gateway."""
    names = dict(CardPayment.objects.exclude(charge_id="").values_list("pk", "charge_id"))
    names |= dict(Transfer.objects.exclude(gateway_id="").values_list("pk", "gateway_id"))
    postings = Posting.objects.filter(
        account__kind=AccountKind.GATEWAY,
        entry__kind__in=[EntryKind.TOP_UP, EntryKind.CAPTURE, EntryKind.TRANSFER],
    ).values_list("entry__reference", "amount_micros")
    return {names[reference]: -amount for reference, amount in postings if reference in names}
