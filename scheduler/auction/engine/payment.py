"""What a task pays for a plan: its cost, the house's fee, rounded up to whole units of money.

The fee is a constant of the task's own work. It changes no choice among plans, and it does not
depend on the bid, so a bid still wins exactly if it is above a price that it has no part in.
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

    def parts(self, cost: PriceParts) -> PriceParts:
        """Give a price's parts from those of its cost."""
        whole = replace(cost, fee=self.fee)
        return replace(whole, rounding=self._missing(whole.total))

    def price(self, cost: float) -> float:
        """Give the price of a plan from the sum of its cost."""
        price = cost + self.fee
        return price + self._missing(price)

    def most_below(self, bid: float) -> float:
        """Give the cost that a plan must undercut for a bid to win."""
        if self.quantum <= 0:
            return bid - self.fee
        units = math.ceil(bid / self.quantum) - 1
        return (units + _slack(units)) * self.quantum - self.fee

    def _missing(self, price: float) -> float:
        """Give what is missing to the next whole unit."""
        if self.quantum <= 0:
            return 0.0
        units = price / self.quantum
        return math.ceil(units - _slack(units)) * self.quantum - price


def make_payment_rule(rules: ZoneRules, task: Task) -> PaymentRule:
    """Give the rule by which a task pays under a zone's rules."""
    return PaymentRule(quantum=rules.money_quantum, fee=rules.fee_per_unit * task.compute_demand)


def _slack(units: float) -> float:
    """Give the part of a unit that a sum's own rounding error may not cost."""
    return min(max(1e-9, 1e-15 * abs(units)), 1e-3)
