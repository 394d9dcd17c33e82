"""How second opinions agree with what vendors delivered: a share, and Cohen's kappa."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Count, Q, QuerySet

from marketplace.vendors.models import Preparation, RowOpinion, RowState


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many second opinions were given, and how many of them agree."""

    asked: int
    given: int
    agreeing: int
    #: Of what both decided: to take the row as proposed, to change it, or to leave it out.
    kappa: float | None = None


def name_decision(proposal: str, made: str) -> RowState:
    """What a person decided about a row, both as JSON; ``made`` is empty for a row left out."""
    if not made:
        return RowState.DROPPED
    is_proposed = proposal != "" and json.loads(proposal) == json.loads(made)
    return RowState.ACCEPTED if is_proposed else RowState.EDITED


def count_agreement(preparation: Preparation) -> Agreement:
    """How second opinions on a delivery agree with it."""
    return _count(RowOpinion.objects.filter(preparation=preparation))


def count_vendor_agreement(vendor_id: str) -> Agreement:
    """How second opinions on all of a vendor's deliveries agree with them."""
    return _count(RowOpinion.objects.filter(preparation__vendor=vendor_id))


def _count(opinions: QuerySet[RowOpinion]) -> Agreement:
    counts = opinions.aggregate(
        asked=Count("pk"), given=Count("given_at"), agreeing=Count("pk", filter=Q(agrees=True))
    )
    given = opinions.filter(given_at__isnull=False).order_by()
    pairs = given.values_list("first_decision", "second_decision").annotate(rows=Count("pk"))
    kappa = compute_kappa({(first, second): rows for first, second, rows in pairs})
    return Agreement(**counts, kappa=kappa)


def compute_kappa(counts: Mapping[tuple[str, str], int]) -> float | None:
    """Compute how far two raters agree beyond chance: 1 always, 0 as often as by chance.

    Parameters
    ----------
    counts
        How many things there are, by the category of the first rater and that of the second.

    Returns
    -------
    float or None
        ``None`` where chance alone agrees always: nothing was rated, or all of it the same.

    References
    ----------
    J. Cohen, "A Coefficient of Agreement for Nominal Scales", Educational and Psychological
    Measurement 20(1), 1960, equation 1.
    """
    firsts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for (first, second), things in counts.items():
        firsts[first] += things
        seconds[second] += things
    whole = firsts.total()
    same = whole * sum(n for (first, second), n in counts.items() if first == second)
    by_chance = sum(n * seconds[category] for category, n in firsts.items())
    most = whole * whole
    return (same - by_chance) / (most - by_chance) if by_chance < most else None
