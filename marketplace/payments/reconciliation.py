"""Whether the gateway has the money that the ledger says: compared movement by movement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from marketplace.common.money import format_usd_exact
from marketplace.payments.account_sums import annotate_totals
from marketplace.payments.gateway_tries import list_tried
from marketplace.payments.locks import lock_comparison
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardPayment,
    CardRefund,
    Entry,
    EntryKind,
    GatewayComparison,
    GatewayMovement,
    LedgerAccount,
    Posting,
    Transfer,
)
from marketplace.payments.movements import (
    FEES,
    OWN_BANK,
    book_movements,
    fetch_movements,
    load_latest_rates,
)
from marketplace.payments.stripe_gateway import LEDGER_CURRENCY

#: Movements that are compared by their object, those of one together.
_NAMED = ("charge", "transfer", "refund", "refund_failure")
#: Movements that are booked as they are valued here: nothing of them is rounded otherwise.
_BOOKED_ALIKE = (*OWN_BANK, *FEES)
#: However many movements there are, rounding explains no more than a dollar.
_ROUNDING_MOST_CENTS = 100
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
    known: Counter[str] = Counter()
    for name, cents in named:
        known[name] += cents * MICROS_PER_CENT
    converted = _value_converted(counted.exclude(dollars), ours)
    known.update(converted.named)
    unrated = GatewayMovement.objects.filter(rate=None).values_list("currency")
    return Reconciliation(
        ledger_micros=posted,
        gateway_micros=there * MICROS_PER_CENT + converted.total_micros,
        worth_micros=there * MICROS_PER_CENT + converted.worth_micros,
        rounding_micros=converted.rounding_micros,
        movements=movements.count(),
        differences=tuple(_compare(known, ours)),
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
    #: By the gateway's id, charges, transfers and refunds.
    named: Mapping[str, int]


@dataclass(slots=True)
class _Moved:
    """What the movements of one object come to."""

    cents: int = 0
    value_micros: int = 0
    movements: int = 0


def _value_converted(movements: QuerySet[GatewayMovement], ours: Mapping[str, int]) -> _Converted:
    settled, taken_back = _load_settled()
    left: Counter[str] = Counter()
    moved: defaultdict[str, _Moved] = defaultdict(_Moved)
    total = rounded = 0
    for found in movements.iterator():
        left[found.currency] += found.net_cents
        total -= found.to_dollars(found.fee_cents) * MICROS_PER_CENT
        value = found.to_dollars(found.amount_cents) * MICROS_PER_CENT
        if found.kind in _NAMED:
            one = moved[found.source_id]
            one.cents += found.amount_cents
            one.value_micros += value
            one.movements += 1
            continue
        if booked := taken_back.get((found.kind, found.currency, found.amount_cents)):
            # At the rate of its transfer. Which of those that are alike, the sum does not tell.
            value = booked.pop()
        elif found.kind not in _BOOKED_ALIKE:
            rounded += 1
        total += value
    for name, one in moved.items():
        # A refund that failed before it was booked comes to nothing, but for its rates.
        booked_micros = ours.get(name, 0 if one.movements > 1 else None)
        if booked_micros is None:
            rounded += 1
        elif (
            settled.get(name) == -one.cents
            or abs(one.value_micros - booked_micros) <= one.movements * MICROS_PER_CENT
        ):
            # The rest is the rate of another moment, or less than a cent each.
            one.value_micros = booked_micros
        total += one.value_micros
    rates = load_latest_rates()
    worth = sum(round(cents / rates[currency]) for currency, cents in left.items())
    return _Converted(
        total_micros=total,
        rounding_micros=min(rounded, _ROUNDING_MOST_CENTS) * MICROS_PER_CENT,
        worth_micros=worth * MICROS_PER_CENT,
        named={name: one.value_micros for name, one in moved.items()},
    )


def _load_settled() -> tuple[dict[str, int], dict[tuple[str, str, int], list[int]]]:
    """What left by each transfer in another currency, and what was booked for what came back."""
    settled: dict[str, int] = {}
    taken_back: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
    sent = Transfer.objects.exclude(currency=LEDGER_CURRENCY).exclude(gateway_id="")
    booked = Entry.objects.filter(kind=EntryKind.REVERSAL, reference__in=sent.values("pk"))
    is_back = set(booked.values_list("reference", flat=True))
    for transfer in sent.iterator():
        settled[transfer.gateway_id] = transfer.settled_cents
        if transfer.pk in is_back:
            key = ("transfer_refund", transfer.currency, transfer.settled_back_cents)
            taken_back[key].append(transfer.reversed_cents * MICROS_PER_CENT)
    return settled, taken_back


def _compare(there: Mapping[str, int], here: Mapping[str, int]) -> Iterable[Difference]:
    """Named movements by the gateway's id; everything else shows in the balances."""
    for reference in sorted((there.keys() | here.keys()) - list_tried()):
        ours, theirs = here.get(reference), there.get(reference)
        if (ours or 0) != (theirs or 0):
            what = (
                MISSING_HERE if ours is None else MISSING_THERE if theirs is None else OTHER_AMOUNT
            )
            yield Difference(reference, what, ours or 0, theirs or 0)


def _load_ours() -> dict[str, int]:
    """What the ledger booked, by the gateway's id: positive is more at the gateway."""
    names = dict(CardPayment.objects.exclude(charge_id="").values_list("pk", "charge_id"))
    names |= dict(Transfer.objects.exclude(gateway_id="").values_list("pk", "gateway_id"))
    names |= dict(CardRefund.objects.exclude(gateway_id="").values_list("pk", "gateway_id"))
    postings = Posting.objects.filter(
        account__kind=AccountKind.GATEWAY,
        entry__kind__in=[
            *(EntryKind.TOP_UP, EntryKind.CAPTURE, EntryKind.TRANSFER, EntryKind.CARD_REFUND),
        ],
    ).values_list("entry__reference", "amount_micros")
    ours: Counter[str] = Counter()
    for reference, amount in postings:
        # What a refund that failed brings back has its name, and more behind it.
        name = names.get(reference.partition(":")[0])
        if name is not None:
            ours[name] -= amount
    return ours
