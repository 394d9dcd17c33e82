"""Whether the gateway has the money that the ledger says: compared movement by movement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Sum

from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardPayment,
    EntryKind,
    Posting,
    Transfer,
)
from marketplace.payments.stripe_gateway import Movement

#: Names of the kinds of differences.
MISSING_HERE, MISSING_THERE, OTHER_AMOUNT = "not in the ledger", "not at the gateway", "differs"


@dataclass(frozen=True, slots=True)
class Difference:
    """One movement on which the gateway and the ledger differ."""

    #: The gateway's object, or our row.
    reference: str
    what: str
    ledger_micros: int
    gateway_micros: int


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Both balances, and where they part."""

    #: What the ledger says lies at the gateway.
    ledger_micros: int
    gateway_micros: int
    movements: int
    differences: tuple[Difference, ...]

    @property
    def is_right(self) -> bool:
        return not self.differences and self.ledger_micros == self.gateway_micros


def reconcile() -> Reconciliation:
    """Compare all movements; call outside of any transaction.

    Calls that are under way show as differences for as long as they take.
    """
    movements = gateway.list_movements()
    posted = -(
        Posting.objects.filter(account__kind=AccountKind.GATEWAY).aggregate(
            total=Sum("amount_micros")
        )["total"]
        or 0
    )
    return Reconciliation(
        ledger_micros=posted,
        gateway_micros=sum(found.net_cents for found in movements) * MICROS_PER_CENT,
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
