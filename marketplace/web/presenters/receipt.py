"""Price parts whose shown lines add up to the shown total."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from marketplace.auction.models import Bid, WorkShare
from marketplace.auction.pay_rule import PAY_RULE
from marketplace.common.money import SMALL_MICROS, TINY_MICROS, count_decimals, format_usd_exact
from marketplace.jobs.models import Job
from marketplace.payments.selectors import find_distribution

_LABELS = {
    "vendor": "Data cleaning",
    "operational": "Node asks",
    "compute": "Compute price",
    "memory": "Memory price",
    "rounding": "Rounding up to a micro-dollar",
}
_MICROS_PER_CENT = 10_000


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
    #: Who got the node asks, once the job has ended: words, what for, micro-dollars.
    payees: tuple[tuple[str, str, int], ...]
    decimals: int
    #: Sentences on how the job came to cost other than its plan.
    notes: tuple[str, ...] = ()

    @property
    def asks_micros(self) -> int:
        return sum(micros for _, _, micros in self.payees)


def build_receipt(bid: Bid, *, job: Job) -> PaymentReceipt:
    """The receipt of an admitted bid, its parts to the micro-dollar."""
    settled_at = job.settled_at
    payment_micros = bid.payment_micros or 0
    whys = _explain_lines(bid)
    lines = tuple(
        replace(line, why=whys[line.key])
        for line in list_price_lines(
            bid.parts or {}, payment_micros, exact=True, is_royalty=bool(bid.royalty_micros)
        )
    )
    money: list[tuple[str, datetime | None, int]] = [
        ("Held in your wallet", bid.created_at, bid.price_micros),
        ("Charged", bid.decided_at, payment_micros),
        ("Released to you", bid.decided_at, bid.price_micros - payment_micros),
    ]
    if bid.refund_micros:
        money.append(("Returned to you", settled_at, bid.refund_micros))
    if bid.credit_micros:
        money.append(("Credited for a late end", settled_at, bid.credit_micros))
    payees = _list_payees(bid)
    shown = [line.micros for line in lines] + [micros for _, _, micros in (*money, *payees)]
    return PaymentReceipt(
        *(lines, tuple(money), payees, count_decimals([payment_micros, *shown])),
        notes=tuple(_list_notes(bid, job)),
    )


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
    """How the node asks were shared out; the parts add up to them."""
    shared = find_distribution(hold_reference=bid.hold_reference)
    if shared is None:
        return ()
    works = WorkShare.objects.filter(bid=bid).select_related("node", "organisation")
    payees = [
        (work.organisation.name, f"{work.node.name}, {work.units:,} work units", work.paid_micros)
        for work in works.order_by("node__name")
    ]
    if shared.asks_returned_micros:
        payees.append(("You", "returned or credited to you", shared.asks_returned_micros))
    if shared.borne_pay_micros:
        payees.append(
            ("The house", "paid for work that you do not pay for", -shared.borne_pay_micros)
        )
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
        "rounding": "A price is a whole number of micro-dollars.",
    }


def _label(key: str, *, is_royalty: bool) -> str:
    return "Royalty" if key == "vendor" and is_royalty else _LABELS[key]


def choose_quantum(total_micros: int) -> int:
    """What one shown unit is worth: cents, or hundredths of a cent under a dollar."""
    if total_micros >= SMALL_MICROS or total_micros == 0:
        return _MICROS_PER_CENT
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
