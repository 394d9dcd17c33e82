"""What a task pays for a plan: its cost, the house's fee, and what cards and tax take of a price.

The fee is a constant of the task's own work, and the shares are those of every price. So a dearer
plan never has a lower price, the cheapest plan stays the cheapest, and nothing depends on the bid:
a bid still wins exactly if it is above a price that it has no part in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scheduler.auction.log.rules import ZoneRules
from scheduler.types import PriceParts, Task


@dataclass(frozen=True, slots=True)
class PaymentRule:
    """Make prices of the costs of one task's plans."""

    #: Prices are whole multiples of it; 0 does not round.
    quantum: float
    #: The house's fee for the task.
    fee: float = 0.0
    #: Of the price, for the payment by card and for tax.
    card_share: float = 0.0
    tax_share: float = 0.0

    def parts(self, cost: PriceParts) -> PriceParts:
        """Give a price's parts from those of its cost."""
        whole = replace(cost, fee=self.fee)
        missing = self._missing(whole.total)
        card, tax = self._share_out(whole.total + missing)
        return replace(whole, rounding=missing, card=card, tax=tax)

    def price(self, cost: float) -> float:
        """Give the price of a plan from the sum of its cost."""
        price = cost + self.fee
        price += self._missing(price)
        card, tax = self._share_out(price)
        return price + card + tax

    def least(self, cost: float) -> float:
        """Give what the price is at least, before rounding."""
        return (cost + self.fee) / self._kept

    def most_below(self, bid: float) -> float:
        """Give the cost that a plan must undercut for a bid to win."""
        if self.quantum <= 0:
            return bid * self._kept - self.fee
        units = math.ceil(bid * self._kept / self.quantum) - 1
        # What is rounded up of each share may take some units more.
        while self._kept < 1 and sum((net := units * self.quantum, *self._share_out(net))) >= bid:
            units -= 1
        return (units + _slack(units)) * self.quantum - self.fee

    @property
    def _kept(self) -> float:
        """Give what is left of a price for cost and fee."""
        return 1.0 - self.card_share - self.tax_share

    def _share_out(self, net: float) -> tuple[float, float]:
        """Give what a price has for cards and for tax where ``net`` is to be left of it."""
        if self._kept == 1:
            return 0.0, 0.0
        price = net / self._kept
        if self.quantum <= 0:
            return price * self.card_share, price * self.tax_share
        while True:
            price += self._missing(price)
            card, tax = (self._round_up(price * x) for x in (self.card_share, self.tax_share))
            # Each share is of the price that it is part of.
            if net + card + tax <= price:
                return price - net - tax if self.card_share else 0.0, tax
            price = net + card + tax

    def _round_up(self, amount: float) -> float:
        return amount + self._missing(amount)

    def _missing(self, price: float) -> float:
        """Give what is missing to the next whole unit."""
        if self.quantum <= 0:
            return 0.0
        units = price / self.quantum
        return math.ceil(units - _slack(units)) * self.quantum - price


def make_payment_rule(rules: ZoneRules, task: Task) -> PaymentRule:
    """Give the rule by which a task pays under a zone's rules."""
    return PaymentRule(
        quantum=rules.money_quantum,
        fee=rules.fee_per_unit * task.compute_demand,
        card_share=rules.card_share,
        tax_share=rules.tax_share,
    )


def _slack(units: float) -> float:
    """Give the part of a unit that a sum's own rounding error may not cost."""
    return min(max(1e-9, 1e-15 * abs(units)), 1e-3)
