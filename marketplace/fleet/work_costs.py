"""A zone's work costs, fitted to what its first node measured.

Costs are relative to a token in the frozen layers, so the device's own speed cancels out. Each
stays within a band around what the base model's shape says: neither noise nor an invented self-test
makes a unit something else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.protocol.job_spec import WorkCosts
from workers.protocol.node_facts import WorkMeasurement
from workers.protocol.work import PARTS

#: How far a cost may be from what the shape says, as a factor either way.
BAND = 4.0
#: The same of the shares ``forward`` and ``even``, of which little is unknown.
SHARES_LEAST, SHARES_MOST = 0.2, 1.0
#: Fewer measurements than there are costs say nothing.
MEASUREMENTS_LEAST = 6
_ROUNDS = 2_000


def fit_work_costs(prior: WorkCosts, measured: Sequence[WorkMeasurement]) -> WorkCosts:
    """The costs that explain the measurements best; the prior when there are too few.

    Non-negative least squares of the relative error of the predicted times, by coordinate descent
    (Franc, Hlavac & Navara 2005), over rows of mixed lengths; ``even`` is then the middle ratio of
    measured to predicted time where all are equally long.
    """
    mixed = [row for row in measured if not row.even]
    if len(mixed) < MEASUREMENTS_LEAST:
        return prior
    counts = np.array([_list_counts(row) for row in mixed], dtype=np.float64)
    seconds = np.array([row.seconds for row in mixed])
    found = _fit_non_negative(counts / seconds[:, None])
    if found[0] <= 0:
        return prior
    relative = found / found[0]
    known = np.array(
        [prior.token, prior.trained_token, prior.token_pair, prior.sequence, prior.step]
    )
    band = known / PARTS
    relative = np.clip(relative, band / BAND, band * BAND)
    even = [
        row.seconds / float(found @ np.array(_list_counts(row))) for row in measured if row.even
    ]
    forward = [row.forward_seconds / row.seconds for row in mixed]
    _, trained_token, token_pair, sequence, step = (round(PARTS * cost) for cost in relative)
    return WorkCosts(
        token=PARTS,
        trained_token=trained_token,
        token_pair=token_pair,
        sequence=sequence,
        step=step,
        forward=_find_share(forward, prior.forward),
        even=_find_share(even, prior.even),
    )


def _list_counts(row: WorkMeasurement) -> tuple[int, int, int, int, int]:
    """What costs are paid for, in the order of ``WorkCosts``."""
    return row.tokens, row.trained_tokens, row.token_pairs, row.sequences, row.steps


def _find_share(ratios: Sequence[float], otherwise: float) -> int:
    share = float(np.median(ratios)) if ratios else otherwise / PARTS
    return round(PARTS * min(SHARES_MOST, max(SHARES_LEAST, share)))


def _fit_non_negative(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """``x >= 0`` that brings ``counts @ x`` closest to ones.

    Parameters
    ----------
    counts : float[measurements, costs]
        Of each measurement, over its seconds.
    """
    # Columns of one size, so that no cost is found later than the others.
    scale = np.maximum(np.linalg.norm(counts, axis=0), 1e-300)
    columns = counts / scale
    products, targets = columns.T @ columns, columns.sum(axis=0)
    found = np.zeros(len(scale))
    for _ in range(_ROUNDS):
        for place in range(len(found)):
            slope = products[place] @ found - targets[place]
            found[place] = max(0.0, found[place] - slope / max(products[place, place], 1e-300))
    return found / scale
