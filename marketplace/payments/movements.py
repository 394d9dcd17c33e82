"""The gateway's movements: asked for by date, stored with the work of booking each, booked once.

Most movements are booked where they are caused. Here is what only a movement tells: what the
gateway kept for itself, and what went to the house's own bank or came from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal

from django.db import transaction

from marketplace.common.durable.kinds import HeldWork, WorkFailed, get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import book_fee
from marketplace.payments.gateway_tries import list_tried
from marketplace.payments.ledger import house, post_entry
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardPayment,
    Entry,
    EntryKind,
    GatewayMovement,
)

#: The kind of work that booking a movement is.
BOOK_MOVEMENT = "payments.movement_book"
#: Movements between the gateway and the house's own bank.
OWN_BANK = ("payout", "payout_cancel", "payout_failure", "topup", "topup_reversal")
#: Movements are asked for again so far back: they do not come in order.
SEEN_AGAIN = timedelta(days=2)
#: Movements that are nothing but a fee.
FEES = ("stripe_fee", "stripe_fx_fee", "tax_fee")


def fetch_movements(*, now: datetime) -> None:
    """Ask the gateway for what moved since the last look, and store it with the work of booking it.

    Both are stored or neither. Call outside of transactions.
    """
    latest = GatewayMovement.objects.order_by("-moved_at").values_list("moved_at", flat=True)
    known = latest.first()
    movements = gateway.list_movements(since=None if known is None else known - SEEN_AGAIN)
    rates = _find_rates(movements)
    rows = [
        GatewayMovement(
            id=found.gateway_id,
            source_id=found.source_id,
            kind=found.kind[:60],
            currency=found.currency,
            amount_cents=found.amount_cents,
            fee_cents=found.fee_cents,
            net_cents=found.net_cents,
            rate=rates[found.gateway_id],
            moved_at=found.moved_at,
        )
        for found in movements
    ]
    with transaction.atomic():
        stored = GatewayMovement.objects.filter(pk__in=[row.pk for row in rows])
        before = set(stored.values_list("pk", flat=True))
        new = [row for row in rows if row.pk not in before]
        GatewayMovement.objects.bulk_create(new, ignore_conflicts=True)
        told = [row for row in (*new, *_rate_earlier()) if _tells(row)]
        enqueue_work(*(NewWork(BOOK_MOVEMENT, row.pk, due_at=now) for row in told))


def _rate_earlier() -> list[GatewayMovement]:
    """Write down the rate of movements that were stored before any was known: the first one."""
    unrated = GatewayMovement.objects.filter(rate=None)
    known = GatewayMovement.objects.exclude(rate=None).order_by("currency", "moved_at", "pk")
    known = known.filter(currency__in=unrated.values("currency")).distinct("currency")
    first = dict(known.values_list("currency", "rate"))
    rated = list(unrated.filter(currency__in=first))
    for row in rated:
        row.rate = first[row.currency]
    for currency, rate in sorted(first.items()):
        # One that another process has rated by now stays as it is.
        unrated.filter(currency=currency).update(rate=rate)
    return rated


def _find_rates(movements: Iterable[gateway.Movement]) -> dict[str, Decimal | None]:
    """By movement, what a dollar was worth; where nothing was converted, what it last was."""
    latest = load_latest_rates()
    in_order = sorted(movements, key=lambda found: found.moved_at)
    for found in in_order:
        if found.rate is not None:
            # For those before the first that was converted.
            latest.setdefault(found.currency, found.rate)
    rates: dict[str, Decimal | None] = {}
    for found in in_order:
        if found.rate is not None:
            latest[found.currency] = found.rate
        rates[found.gateway_id] = latest.get(found.currency)
    return rates


def load_latest_rates() -> dict[str, Decimal]:
    """By currency that the gateway settled in, what a dollar was last worth."""
    known = GatewayMovement.objects.exclude(rate=None).order_by("currency", "-moved_at", "-pk")
    return dict(known.distinct("currency").values_list("currency", "rate"))


def find_settlement() -> tuple[str, Decimal]:
    """What the gateway settles in now, and what a dollar is worth in it."""
    found = GatewayMovement.objects.exclude(rate=None).filter(kind="charge")
    last = found.order_by("-moved_at", "-pk").values_list("currency", "rate").first()
    return last or (gateway.LEDGER_CURRENCY, Decimal(1))


def book_movements(*, now: datetime) -> None:
    """Book now what waits, unless a worker has it; call outside of transactions."""
    while run_due_work(get_kinds()[BOOK_MOVEMENT], clock=lambda: now):
        pass


def _tells(movement: GatewayMovement) -> bool:
    """Whether something is booked from a movement."""
    is_own_bank = movement.kind in OWN_BANK and movement.amount_cents
    return movement.rate is not None and bool(_find_fee(movement) or is_own_bank)


def _find_fee(movement: GatewayMovement) -> int:
    fee = -movement.amount_cents if movement.kind in FEES else movement.fee_cents
    return movement.to_dollars(fee)


def load_movement(work: HeldWork) -> GatewayMovement | None:
    return GatewayMovement.objects.filter(pk=work.key).first()


def check_charge(_work: HeldWork, movement: GatewayMovement) -> None:
    """Wait until the payment of a charge is written down: its fee belongs to it.

    Raises
    ------
    WorkFailed
        No payment has the charge.
    """
    if movement.kind != "charge" or movement.source_id in list_tried():
        return
    if not CardPayment.objects.filter(charge_id=movement.source_id).exists():
        raise WorkFailed(f"No payment of this market has the charge {movement.source_id}.")


def book_movement(
    _work: HeldWork, movement: GatewayMovement, _result: None, *, now: datetime
) -> None:
    """Book a charge's fee once, any other under the movement's own id, and bank payouts."""
    fee = _find_fee(movement)
    if movement.kind == "charge":
        CardPayment.objects.filter(charge_id=movement.source_id).update(fee_cents=fee)
        book_fee(reference=movement.source_id, fee_cents=fee, now=now)
    else:
        book_fee(reference=movement.pk, fee_cents=fee, now=now)
    if movement.kind in OWN_BANK:
        _book_bank_payout(movement, now=now)


def _book_bank_payout(movement: GatewayMovement, *, now: datetime) -> None:
    booked = Entry.objects.filter(kind=EntryKind.BANK_PAYOUT, reference=movement.pk)
    if not movement.amount_cents or booked.exists():
        return
    amount = movement.to_dollars(movement.amount_cents) * MICROS_PER_CENT
    post_entry(
        kind=EntryKind.BANK_PAYOUT,
        reference=movement.pk,
        amounts={house(AccountKind.GATEWAY): -amount, house(AccountKind.BANK): amount},
        locked={},
        now=now,
    )
