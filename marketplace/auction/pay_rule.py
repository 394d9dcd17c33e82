"""Who gets what when a job ends: the one rule of pay, as text and as arithmetic.

- The operational cost in a payment goes to the nodes that did the job's work, in proportion to the
  work units of each. Where rates are posted, it is paid at the rate that the cells were sold for. A
  finished job has done all of its work, however early.
- Work that was never done is refunded: the share of the whole payment that it is, without a
  vendor's price once the vendor's work was accepted.
- The same holds for cells that prepared data do not need: their share of the whole payment, again
  without the vendor's price, goes back at once. Of the rent of cells that begin within four slots
  no more does than the market bears a day for the vendor's organisation; the rest goes back as they
  are sold again. Where the vendor is the owner's own, it is given back at its value, as below. A
  vendor that is paid less because it was late, or that replaced a dearer one, leaves the difference
  to the owner, who waited.
- A warm start that falls behind goes on at no cost to its owner: the market pays for what is done
  beyond the work that was sold, at the same rate, up to a limit a day for its owner and for each
  provider. An owner's own nodes are not paid for that.
- **Failed by the house**: the owner gets everything back. Providers at fault get nothing for
  the job; the house pays the others for what they did. A vendor whose work was accepted keeps its
  price, so the house bears that too, unless the vendor is the owner's own.
- What an owner ends after it was sold (a cancellation, its own input, its own early stop) is
  **given back at its value**: 98 % of the smaller of what was paid for the work that is left and of
  what the same work costs now (``give_backs``). Of the cell that runs as it ends only the
  operational cost goes back. Of cells that begin within four slots, what is above it (the rent)
  goes back as far as they are sold again; of what is not, their provider gets what it asks for the
  room. Without this, a purchase would be a free option. Where
  machines were started for the job alone, it pays no less than its first slot on each, whose price
  holds the start. What is kept stays with the market. Nothing is kept where the market failed the
  job, was late, or has a plan that ends too late.
- The house's fee is a fixed amount for each work unit, and so a part of the price that goes back
  with the work that was not done. A job that the house fails earns it none.
- An express job holds a seat for all of its work: its share is a quarter.
- **Late**: the owner gets a credit, ``SLA_CREDIT_PERCENT`` of the payment without a vendor's price
  for accepted work, and with a refund never more than was paid. It comes out of the pay of the
  providers at fault first, then from the market; of a warm start that fell behind, from the market.
- What the market bears for one provider's faults is limited for each day. An owner who is at fault
  as a provider gets neither a credit nor a refund of work that was done.

Nothing here reads or writes anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction

from marketplace.common.money import MAX_MICROS, split_micros
from marketplace.jobs.executed_work import ExecutedWork, NodeWork

#: The sentence that owners, providers and the operator all read.
PAY_RULE = (
    "The operational cost of a job goes to the nodes that did its work, in proportion to the "
    "work each of them did, at the posted rate where rates are posted. Work that was never "
    "done is refunded; of a job that its owner ends, 98 % of the smaller of what was paid for it "
    "and of what it costs now. Cells that it gives back earn their provider something only if they "
    "are sold again, or begin within four slots and have rent that is kept. The house earns this "
    "part only for machines that it rents itself."
)
#: Sums of costs below a millionth of a micro-dollar are rounding errors.
_TOLERANCE = 1e-6


#: What comes back of an express job's price when it is late, percent, by how late it is as a share
#: of its SLO; the published schedule.
EXPRESS_REFUNDS = ((0.1, 25), (0.5, 50), (math.inf, 100))

#: What the owner of an express job pays at least, percent of its price, where early stopping, a
#: cancellation or a fault of its input spared work: the seat was held for all of it.
EXPRESS_LEAST_PERCENT = 25


#: What a job costs that its owner ends, as bidders read it before a bid.
GIVE_BACK_RULE = (
    "If you cancel a job that was sold to you, you get back 98 % of what is left of it: of what "
    "you paid for that work, or of what it costs by then, whichever is less. You pay for the work "
    "that was done, for room in the slot that runs, and for a machine that was started for the "
    "job alone no less than its first slot there. For room that begins within four slots, what "
    "is above the operational cost goes back as far as the room is sold again."
)


def find_express_refund(*, late_s: float, slo_s: float) -> int:
    """The percentage of an express job's price that comes back when it ends so late."""
    return next(percent for share, percent in EXPRESS_REFUNDS if late_s <= share * slo_s)


class Ending(Enum):
    """How a job ended, as far as money goes."""

    IN_TIME = "in time"
    LATE = "late"
    #: Cancelled, or failed by its owner's input: what was done is paid for.
    STOPPED = "stopped"
    FAILED_BY_HOUSE = "failed by the house"


@dataclass(frozen=True, slots=True)
class NodePay:
    """What one node's provider gets."""

    work: NodeWork
    #: Its part of the operational cost, by the work it did.
    earned_micros: int
    #: What of it is paid: less where the provider is at fault.
    paid_micros: int
    #: What of it the market adds for a warm start's work beyond that sold.
    added_micros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoldJob:
    """What the owner paid for a job, and under which terms."""

    owner_id: str
    payment_micros: int
    #: The operational cost in the payment.
    asks_micros: int
    #: The house's fee in the payment.
    house_fee_micros: int = 0
    #: Part of the payment for a vendor's accepted work; it is due however the job ended.
    vendor_micros: int = 0
    #: The vendor belongs to the owner, or to people who belong to both.
    is_own_vendor: bool = False
    #: By node, what a work unit in its cells was sold for; ``None``: asks are paid, and every
    #: unit counts alike.
    posted_rates: Mapping[str, Fraction] | None = None
    #: Of the price of the work that was not done, what stays as its owner gave the job back.
    kept_micros: int = 0
    #: What stayed of the price of cells that it gave back before; no part of the payment.
    given_back_kept_micros: int = 0
    #: Of an express job's payment, what is kept however much work was spared.
    least_percent: int = 0
    #: The same in micro-dollars: what it was sold its first slots on machines for that were started
    #: for it alone.
    starts_micros: int = 0
    #: Of the payment, what a missed deadline earns.
    credit_percent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseLimits:
    """What the market may still bear today.

    It is one amount for each organisation, whatever it is borne for: a settlement that bears
    something twice for one of them takes both from it.
    """

    #: By organisation; for one that is not named the market bears nothing.
    left_micros: Mapping[str, int] = field(default_factory=dict[str, int])
    #: The one that a fault counts for; ``None``: for nobody, so without a limit.
    at_fault_id: str | None = None

    def find_for_fault(self, borne_micros: Mapping[str, int]) -> int:
        """Find what may be borne for the fault, after what was borne for other reasons."""
        if self.at_fault_id is None:
            return MAX_MICROS
        left = self.left_micros.get(self.at_fault_id, 0)
        return max(0, left - borne_micros.get(self.at_fault_id, 0))


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is due when a job ends as it did. All amounts are micro-dollars."""

    #: The operational cost in the payment.
    asks_micros: int
    #: Given back to the owner out of the payment.
    refund_micros: int
    #: Paid to the owner on top, for a missed deadline.
    credit_micros: int
    nodes: tuple[NodePay, ...]
    #: Of the operational cost, what went back to the owner: with the refund or in the credit.
    asks_returned_micros: int
    #: Pay that the market adds for work of a job that it refunded.
    borne_pay_micros: int
    #: The part of the credit that the market pays.
    borne_credit_micros: int
    #: The part of the refund that a vendor keeps; the market pays it to the owner.
    borne_vendor_micros: int = 0
    #: Of the price of work that was not done, what stays with the market.
    kept_micros: int = 0
    #: The same of cells that were given back before the job ended.
    given_back_kept_micros: int = 0
    #: Of the operational cost, what is part of that.
    asks_kept_micros: int = 0
    #: The house's fee for the work that was done.
    house_fee_micros: int = 0


def compute_asks(*, operational: float, payment_micros: int) -> int:
    """The operational cost in a payment, in whole micro-dollars."""
    return min(payment_micros, max(0, math.ceil(operational - _TOLERANCE)))


def compute_spared(*, payment_micros: int, vendor_micros: int, share: Fraction) -> int:
    """Compute the price of a share of the work: that share of the payment without the vendor's."""
    return max(0, math.floor((payment_micros - vendor_micros) * share))


def cut_asks(*, asks_micros: int, payment_micros: int, back_micros: int) -> int:
    """Compute the operational cost that is left once ``back_micros`` of a payment went back.

    Both amounts are without a vendor's price. The cost falls as the payment does, so what is left
    of the payment covers it.
    """
    if not payment_micros:
        return asks_micros
    return -(-asks_micros * (payment_micros - back_micros) // payment_micros)


def compute_settlement(
    *,
    sold: SoldJob,
    work: ExecutedWork,
    ending: Ending,
    at_fault: Collection[str],
    limits: HouseLimits,
) -> Settlement:
    """What the rule makes of a job as it ended.

    Parameters
    ----------
    at_fault
        Organisations whose nodes lost, failed or delayed the job.
    """
    if ending is Ending.FAILED_BY_HOUSE and sold.owner_id in at_fault:
        ending = Ending.STOPPED
    earned, added = _share_asks(sold, work, limits.left_micros)
    faulty = [node.organisation_id in at_fault for node in work.by_node]
    if ending is Ending.FAILED_BY_HOUSE:
        return _pay_failed(sold, work.by_node, earned, added, faulty, limits.find_for_fault({}))
    undone = 1 - work.share
    payment = sold.payment_micros
    vendor = sold.vendor_micros
    spared = compute_spared(payment_micros=payment, vendor_micros=vendor, share=undone)
    least = max(-(-payment * sold.least_percent // 100), sold.starts_micros)
    refund = max(0, min(spared - sold.kept_micros, payment - least))
    # What is kept comes out of the house's own part of the price first.
    asks_spared = math.floor(sold.asks_micros * undone)
    asks_kept = max(0, asks_spared - refund)
    credit, withheld = 0, [0] * len(earned)
    if ending is Ending.LATE and not _is_party(sold.owner_id, work.by_node, at_fault):
        # With what is refunded, never more than was paid. The vendor was in time, and may be a
        # friend of the owner's: a share of its price would be won for nothing.
        credit = min((payment - sold.vendor_micros) * sold.credit_percent // 100, payment - refund)
        forfeit = [amount if at else 0 for amount, at in zip(earned, faulty, strict=True)]
        from_providers = min(credit, sum(forfeit))
        withheld = split_micros(from_providers, forfeit)
        borne = _sum_by_party(sold.owner_id, work.by_node, added)
        credit = from_providers + min(credit - from_providers, limits.find_for_fault(borne))
    return Settlement(
        asks_micros=sold.asks_micros,
        refund_micros=refund,
        credit_micros=credit,
        nodes=tuple(
            NodePay(node, amount, amount - less, more)
            for node, amount, less, more in zip(work.by_node, earned, withheld, added, strict=True)
        ),
        asks_returned_micros=asks_spared - asks_kept + sum(withheld),
        borne_pay_micros=sum(added),
        borne_credit_micros=credit - sum(withheld),
        kept_micros=spared - refund,
        given_back_kept_micros=sold.given_back_kept_micros,
        asks_kept_micros=asks_kept,
        house_fee_micros=math.floor(sold.house_fee_micros * work.share),
    )


def _share_asks(
    sold: SoldJob, work: ExecutedWork, left_micros: Mapping[str, int]
) -> tuple[list[int], list[int]]:
    """What each node earned, and the part of it that the market adds."""
    weights = _weigh(work.by_node, sold.posted_rates)
    added = _limit_overruns(
        split_micros(math.floor(sold.asks_micros * work.overrun), weights),
        providers=[node.organisation_id for node in work.by_node],
        owner_id=sold.owner_id,
        left_micros=left_micros,
    )
    asks_undone = math.floor(sold.asks_micros * (1 - work.share))
    shares = split_micros(sold.asks_micros - asks_undone, weights)
    return [one + more for one, more in zip(shares, added, strict=True)], added


def _limit_overruns(
    wanted: Sequence[int],
    *,
    providers: Sequence[str],
    owner_id: str,
    left_micros: Mapping[str, int],
) -> list[int]:
    """What the market adds for each node; owners earn nothing with their own jobs.

    It is borne for the provider as well as for the owner.
    """
    added = [0] * len(wanted)
    for provider in set(providers) - {owner_id}:
        own = [
            amount if one == provider else 0 for amount, one in zip(wanted, providers, strict=True)
        ]
        limit = left_micros.get(provider, 0)
        parts = split_micros(min(sum(own), limit), own)
        added = [one + part for one, part in zip(added, parts, strict=True)]
    return split_micros(min(sum(added), left_micros.get(owner_id, 0)), added)


def _sum_by_party(
    owner_id: str, nodes: Sequence[NodeWork], added: Sequence[int]
) -> Mapping[str, int]:
    """By organisation, what the market adds for a start that fell behind."""
    sums = Counter({owner_id: sum(added)})
    for node, more in zip(nodes, added, strict=True):
        sums[node.organisation_id] += more
    return sums


def _weigh(nodes: Sequence[NodeWork], posted_rates: Mapping[str, Fraction] | None) -> list[int]:
    """Each node's part in whole numbers: its work units, at its rate.

    A node that had none of the cells sold counts at the mean of those that had.
    """
    units = [node.units for node in nodes]
    if not posted_rates or not any(posted_rates.values()):
        return units
    mean = sum(posted_rates.values(), Fraction(0)) / len(posted_rates)
    parts = [posted_rates.get(node.node_id, mean) * node.units for node in nodes]
    if not any(parts):
        return units
    common = math.lcm(*(part.denominator for part in parts))
    return [int(part * common) for part in parts]


def _pay_failed(
    sold: SoldJob,
    nodes: Sequence[NodeWork],
    earned: Sequence[int],
    added: Sequence[int],
    faulty: Sequence[bool],
    fault_limit: int,
) -> Settlement:
    """Everything goes back to the owner; the market pays those who are not at fault.

    What a vendor keeps goes back as far as the market may bear it: owner, vendor and the provider
    at fault may be friends.
    """
    innocent = [0 if at else amount for amount, at in zip(earned, faulty, strict=True)]
    borne = min(sum(innocent), fault_limit)
    paid = split_micros(borne, innocent)
    vendor = 0 if sold.is_own_vendor else min(sold.vendor_micros, fault_limit - borne)
    return Settlement(
        asks_micros=sold.asks_micros,
        refund_micros=sold.payment_micros - sold.vendor_micros + vendor,
        credit_micros=0,
        nodes=tuple(NodePay(*row) for row in zip(nodes, earned, paid, added, strict=True)),
        asks_returned_micros=sold.asks_micros,
        borne_pay_micros=borne,
        borne_credit_micros=0,
        borne_vendor_micros=vendor,
        given_back_kept_micros=sold.given_back_kept_micros,
    )


def _is_party(owner_id: str, nodes: Sequence[NodeWork], at_fault: Collection[str]) -> bool:
    """Whether the owner also ran the job, or held it up."""
    return owner_id in at_fault or any(node.organisation_id == owner_id for node in nodes)
