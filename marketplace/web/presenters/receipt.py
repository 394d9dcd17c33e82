"""Price parts, rounded so that the shown lines add up to the shown total."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from marketplace.auction.models import Bid, WorkShare
from marketplace.auction.pay_rule import EXPRESS_LEAST_PERCENT, PAY_RULE
from marketplace.common.money import SMALL_MICROS, TINY_MICROS, count_decimals, format_usd_exact
from marketplace.jobs.models import Job
from marketplace.payments.models import MICROS_PER_CENT, AccountKind, EarningKind, PaymentStatus
from marketplace.payments.selectors import (
    find_card_payment_of,
    find_distribution,
    find_house_fees,
    list_fees,
    list_idle_pay,
    list_refunds,
)

_LABELS = {
    "vendor": "Data cleaning",
    "operational": "Node asks",
    "compute": "Compute price",
    "memory": "Memory price",
    "fee": "House fee",
    "card": "Card payment",
    "tax": "Tax",
    "rounding": "Rounding up to a micro-dollar",
}
#: What the house gets of a price, by account.
_HOUSE_FEES = {
    AccountKind.CONGESTION: "kept of the work that was not done",
    AccountKind.HOUSE_FEES: "its fee for the work that was done",
}


@dataclass(frozen=True, slots=True)
class PriceLine:
    key: str
    label: str
    #: Rounded as it is shown.
    micros: int
    #: One sentence on what it pays for; only receipts say it.
    why: str = ""


@dataclass(frozen=True, slots=True)
class PaymentReceipt:
    """Exact amounts, all with as many decimals as the finest of them."""

    lines: tuple[PriceLine, ...]
    #: What moved in the wallet: words, moment, micro-dollars.
    money: tuple[tuple[str, datetime | None, int], ...]
    #: Who got the charge, once the job has ended: words, what for, micro-dollars. They add up to
    #: it; what the house added is negative.
    payees: tuple[tuple[str, str, int], ...]
    #: What the limit of the bid had to do with the price.
    limit: str
    decimals: int
    #: Sentences on how the job came to cost other than its plan.
    notes: tuple[str, ...] = ()


def build_receipt(bid: Bid, *, job: Job) -> PaymentReceipt:
    """The receipt of an admitted bid, its parts to the micro-dollar."""
    payment_micros = bid.payment_micros or 0
    whys = _explain_lines(bid)
    lines = tuple(replace(line, why=whys[line.key]) for line in list_bid_lines(bid, exact=True))
    money = tuple(_list_moves(bid, settled_at=job.settled_at))
    payees = _list_payees(bid)
    shown = [line.micros for line in lines] + [micros for _, _, micros in (*money, *payees)]
    return PaymentReceipt(
        lines=lines,
        money=money,
        payees=payees,
        limit=_explain_limit(bid),
        decimals=count_decimals([payment_micros, *shown]),
        notes=tuple(_list_notes(bid, job)),
    )


def find_kept(bid: Bid) -> int | None:
    """What a winner kept of its own limit; ``None`` without one that the market knows."""
    if bid.payment_micros is None or bid.is_joint or bid.slo_s is not None or bid.asks_price:
        return None
    return bid.price_micros - bid.payment_micros


def _explain_limit(bid: Bid) -> str:
    if bid.slo_s is not None:
        return "The price of an express job follows from the time that was asked for."
    if bid.asks_price:
        return "You were shown a price first, and took it. What more you would pay nobody knows."
    if bid.is_joint:
        return (
            "The limit of the whole bundle decided whether its jobs won. It did not change the "
            "price."
        )
    return (
        f"Your limit of {format_usd_exact(bid.price_micros)} decided whether you won. It did not "
        "change the price."
    )


def _list_moves(
    bid: Bid, *, settled_at: datetime | None
) -> Iterator[tuple[str, datetime | None, int]]:
    """What moved in the wallet, and on a card."""
    payment_micros = bid.payment_micros or 0
    card = find_card_payment_of(hold_reference=bid.hold_reference)
    if card is not None:
        authorised = card.amount_cents * MICROS_PER_CENT
        yield "Authorised on the card", bid.created_at, authorised
    elif find_kept(bid) is not None:
        yield "Held in the wallet", bid.created_at, bid.price_micros
    yield "Charged", bid.decided_at, payment_micros
    if card is None and (kept := find_kept(bid)) is not None:
        yield "Released", bid.decided_at, kept
    if card is not None and card.status == PaymentStatus.PAID:
        received = card.received_cents * MICROS_PER_CENT
        yield "Taken from the card", card.ended_at, received
        if received > payment_micros:
            rest = received - payment_micros
            yield "Put into the wallet: less than a card can pay", card.ended_at, rest
    for at, reason, micros in list_refunds(hold_reference=bid.hold_reference):
        yield f"Returned: {reason[:1].lower()}{reason[1:]}", at, micros
    if bid.credit_micros:
        yield "Credited for a late end", settled_at, bid.credit_micros


def _list_notes(bid: Bid, job: Job) -> Iterator[str]:
    if job.start is not None and bid.cold_price_micros is not None:
        paid = (bid.payment_micros or 0) - bid.excess_micros
        saved = max(0, bid.cold_price_micros - paid)
        yield (
            f"The warm start saved {format_usd_exact(saved)}: without it the price at the decision "
            f"was {format_usd_exact(bid.cold_price_micros)}. The proof is of the "
            f"{job.start.steps:,} steps that were sold; steps beyond them cost you nothing."
        )
    if job.stopped_early and job.best_step is None:
        yield (
            f"Training ended after step {job.step:,} of {job.total_steps:,}, at its target score. "
            f"The price and its proof are of all {job.total_steps:,} steps; what was not done is "
            "returned."
        )
    elif job.stopped_early:
        yield (
            f"Training stopped early after step {job.step:,} of {job.total_steps:,}, because the "
            f"validation loss fell no further; the adapter has the weights of step "
            f"{job.best_step:,}. The price and its proof are of all {job.total_steps:,} steps; "
            "what was not done is returned."
        )


def _list_payees(bid: Bid) -> tuple[tuple[str, str, int], ...]:
    """How the charge was shared out; the parts add up to it."""
    if find_distribution(hold_reference=bid.hold_reference) is None:
        return ()
    works = WorkShare.objects.filter(bid=bid).select_related("node", "organisation")
    payees = [
        (work.organisation.name, f"{work.node.name}, {work.units:,} work units", work.paid_micros)
        for work in works.order_by("node__name")
        if work.paid_micros or bid.slo_s is None
    ]
    for idle in list_idle_pay(hold_reference=bid.hold_reference):
        payees.append((idle.organisation.name, "its room stayed idle", idle.amount_micros))
    for fee in list_fees(hold_reference=bid.hold_reference):
        # The owner of a warm start's adapter is not named.
        payees.append(
            ("The owner of the adapter that it began with", "royalty", fee.amount_micros)
            if fee.kind == EarningKind.ROYALTY
            else (fee.organisation.name, "prepared the data", fee.amount_micros)
        )
    if bid.refund_micros:
        payees.append(("You", "returned to you", bid.refund_micros))
    if bid.credit_micros:
        payees.append(("You", "credited to you for a late end", bid.credit_micros))
    house_fees = find_house_fees(hold_reference=bid.hold_reference)
    for kind, what in _HOUSE_FEES.items():
        if kind in house_fees:
            payees.append(("The house", what, house_fees[kind]))
    rest = (bid.payment_micros or 0) - sum(micros for _, _, micros in payees)
    if rest > 0:
        payees.append(("The house", "the rest", rest))
    elif rest < 0:
        payees.append(("The house", "paid for what you do not pay for", rest))
    return tuple(payees)


def _explain_lines(bid: Bid) -> dict[str, str]:
    cells = bid.cells or []
    slots = f"{len(cells):,} slot{'s' * (len(cells) != 1)}"
    nodes = len({node for _, node in cells})
    return {
        "vendor": "For the owner of the adapter that the job begins with."
        if bid.royalty_micros
        else "Paid to the vendor that cleans the data before training.",
        "operational": f"What providers ask for your share of {slots} on {nodes} "
        f"node{'s' * (nodes != 1)}. {PAY_RULE}",
        "compute": f"{bid.compute_demand:,.0f} units of work. It rises as slots fill up and is "
        "nothing while they are empty.",
        "memory": f"{bid.memory_demand_gb:.2f} GB beside the base model in each slot. It rises "
        "as memory fills up.",
        "fee": f"A fixed amount for each of {bid.compute_demand:,.0f} units of work, the same for "
        "every job of the zone. What is not done gives back its part.",
        "card": "What the card network and the payment gateway keep of a payment of this size, at "
        "most.",
        "tax": "At the highest rate of the operator's table. Your invoice says what of it is owed.",
        "rounding": "A price is a whole number of micro-dollars.",
        "express": f"By the time that you asked for. A late end is refunded by how late it is. "
        f"{EXPRESS_LEAST_PERCENT} % of it is paid however much work is spared, because a seat was "
        "held for all of it. The house pays the node for the seat.",
    }


def list_bid_lines(bid: Bid, *, exact: bool = False) -> list[PriceLine]:
    """The parts of what a winner pays; of an express job there is one."""
    payment_micros = bid.payment_micros or 0
    if bid.slo_s is not None:
        quantum = 1 if exact else choose_quantum(payment_micros)
        return [PriceLine("express", "Express price", round(payment_micros / quantum) * quantum)]
    return list_price_lines(
        bid.parts or {}, payment_micros, exact=exact, is_royalty=bool(bid.royalty_micros)
    )


def _label(key: str, *, is_royalty: bool) -> str:
    return "Royalty" if key == "vendor" and is_royalty else _LABELS[key]


def choose_quantum(total_micros: int) -> int:
    """What one shown unit is worth: cents, or hundredths of a cent under a dollar."""
    if total_micros >= SMALL_MICROS or total_micros == 0:
        return MICROS_PER_CENT
    return 100 if total_micros >= TINY_MICROS else 1


def list_price_lines(
    parts: Mapping[str, float],
    total_micros: int,
    *,
    exact: bool = False,
    is_royalty: bool = False,
) -> list[PriceLine]:
    """Parts rounded by largest remainder, so that they sum to the rounded total.

    ``exact`` rounds to the micro-dollar, for receipts; otherwise to what a headline shows.
    ``is_royalty``: the fee is for the owner of a warm start's adapter.
    """
    quantum = 1 if exact else choose_quantum(total_micros)
    total_units = round(total_micros / quantum)
    amounts = {key: max(0.0, float(parts.get(key, 0.0))) for key in _LABELS}
    rounding = amounts.pop("rounding")
    amounts["compute"] += rounding if rounding < quantum else 0.0
    if rounding >= quantum:
        amounts["rounding"] = rounding
    units = {key: int(amount // quantum) for key, amount in amounts.items()}
    by_remainder = sorted(amounts, key=lambda key: amounts[key] % quantum, reverse=True)
    missing = total_units - sum(units.values())
    for key in by_remainder[: max(0, missing)]:
        units[key] += 1
    return [
        PriceLine(key, _label(key, is_royalty=is_royalty), count * quantum)
        for key, count in units.items()
        if count or key in ("operational", "compute", "memory")
    ]
