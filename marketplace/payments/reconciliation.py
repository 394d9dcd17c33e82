"""Whether the gateway has the money that the ledger says: compared movement by movement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from marketplace.common.money import format_usd_exact
from marketplace.payments.account_sums import annotate_totals
from marketplace.payments.gateway_tries import list_tried_charges
from marketplace.payments.locks import lock_comparison
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardPayment,
    Entry,
    EntryKind,
    GatewayComparison,
    GatewayMovement,
    LedgerAccount,
    Posting,
    Transfer,
)
from marketplace.payments.movements import (
    OWN_BANK,
    book_movements,
    fetch_movements,
    load_latest_rates,
)
from marketplace.payments.stripe_gateway import LEDGER_CURRENCY

#: Movements that are compared one by one.
_NAMED = ("charge", "transfer")
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

    def __str__(self) -> str:
        ledger, there = map(format_usd_exact, (self.ledger_micros, self.gateway_micros))
        return f"{self.reference} {self.what}: ledger {ledger}, gateway {there}."


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Both balances, and where they part."""

    #: What the ledger says lies at the gateway.
    ledger_micros: int
    #: What lies there, but for payouts to the house's bank that are not booked yet; of other
    #: currencies what it was worth when it moved.
    gateway_micros: int
    #: By how much ``gateway_micros`` may be off, since converted amounts are in whole cents.
    rounding_micros: int
    #: What lies there now, of other currencies at their last rates.
    worth_micros: int
    movements: int
    differences: tuple[Difference, ...]
    #: Movements of a currency without a known rate: nothing is booked from them.
    unrated: Mapping[str, int]

    @property
    def is_right(self) -> bool:
        gap = abs(self.ledger_micros - self.gateway_micros)
        return not (self.differences or self.unrated) and gap <= self.rounding_micros

    @property
    def exchange_micros(self) -> int:
        """What the balance gained or lost because rates changed, and by rounding."""
        return self.worth_micros - self.ledger_micros

    def list_problems(self) -> list[str]:
        """In words; one that lasts reads the same the next time."""
        gap = self.ledger_micros - self.gateway_micros
        problems = [str(difference) for difference in self.differences]
        problems += [
            f"{count} movements are in {currency}, and no rate is known."
            for currency, count in self.unrated.items()
        ]
        if abs(gap) > self.rounding_micros:
            side = "the gateway" if gap > 0 else "the ledger"
            problems.append(f"{format_usd_exact(abs(gap))} is missing in {side}.")
        return problems


def reconcile(*, now: datetime) -> Reconciliation:
    """Book what only the gateway's movements tell, and compare all of them.

    Call outside of any transaction. Calls that are under way show as differences for as long as
    they take.
    """
    fetch_movements(now=now)
    book_movements(now=now)
    return _reconcile()


def compare_with_gateway(*, now: datetime) -> GatewayComparison:
    """Compare, and store the result; call outside of any transaction.

    Only what the comparison before found as well is a problem: the rest may be under way.
    """
    problems = reconcile(now=now).list_problems()
    with transaction.atomic():
        comparison = lock_comparison()
        comparison.lasting = [text for text in problems if text in comparison.problems]
        comparison.problems, comparison.made_at = problems, now
        comparison.save()
    return comparison


def _reconcile() -> Reconciliation:
    accounts = annotate_totals(LedgerAccount.objects.filter(kind=AccountKind.GATEWAY))
    posted = -(accounts.values_list("total", flat=True).first() or 0)
    booked = Entry.objects.filter(kind=EntryKind.BANK_PAYOUT).values("reference")
    movements = GatewayMovement.objects.exclude(rate=None)
    counted = movements.filter(~Q(kind__in=OWN_BANK) | Q(pk__in=booked))
    dollars = Q(currency=LEDGER_CURRENCY)
    there = counted.filter(dollars).aggregate(total=Coalesce(Sum("net_cents"), 0))["total"]
    ours = _load_ours()
    named = movements.filter(dollars, kind__in=_NAMED).values_list("source_id", "amount_cents")
    known: Mapping[str, int] = {name: cents * MICROS_PER_CENT for name, cents in named}
    converted = _value_converted(counted.exclude(dollars), ours)
    unrated = GatewayMovement.objects.filter(rate=None).values_list("currency")
    return Reconciliation(
        ledger_micros=posted,
        gateway_micros=there * MICROS_PER_CENT + converted.total_micros,
        worth_micros=there * MICROS_PER_CENT + converted.worth_micros,
        rounding_micros=converted.rounding_micros,
        movements=movements.count(),
        differences=tuple(_compare({**known, **converted.named}, ours)),
        unrated=dict(unrated.annotate(count=Count("pk")).order_by("currency")),
    )


@dataclass(frozen=True, slots=True)
class _Converted:
    """Movements in other currencies than dollars, micro-dollars."""

    #: What they were worth when they moved, without fees; where it is what we booked, just that.
    total_micros: int
    #: By how much that may be off.
    rounding_micros: int
    #: What is left of them now.
    worth_micros: int
    #: By the gateway's id, charges and transfers.
    named: Mapping[str, int]


def _value_converted(movements: QuerySet[GatewayMovement], ours: Mapping[str, int]) -> _Converted:
    sent = Transfer.objects.exclude(currency=LEDGER_CURRENCY).exclude(gateway_id="")
    settled = dict(sent.values_list("gateway_id", "settled_cents"))
    left: Counter[str] = Counter()
    named: dict[str, int] = {}
    total = rounding = 0
    for found in movements.iterator():
        value = found.to_dollars(found.amount_cents) * MICROS_PER_CENT
        booked = ours.get(found.source_id) if found.kind in _NAMED else None
        if booked is not None and (
            settled.get(found.source_id) == -found.amount_cents
            or abs(value - booked) <= MICROS_PER_CENT
        ):
            # The rest is the rate of another moment, or less than a cent.
            value = booked
        else:
            rounding += MICROS_PER_CENT
        if found.kind in _NAMED:
            named[found.source_id] = value
        total += value - found.to_dollars(found.fee_cents) * MICROS_PER_CENT
        left[found.currency] += found.net_cents
    rates = load_latest_rates()
    worth = sum(round(cents / rates[currency]) for currency, cents in left.items())
    return _Converted(total, rounding, worth * MICROS_PER_CENT, named)


def _compare(there: Mapping[str, int], here: Mapping[str, int]) -> Iterable[Difference]:
    """Charges and transfers by the gateway's id; everything else shows in the balances."""
    for reference in sorted((there.keys() | here.keys()) - list_tried_charges()):
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
