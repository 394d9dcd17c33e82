"""Which rows of a data set are held out, and in which order the others are trained on.

Market and node call the same functions, so that the market knows the work of every optimizer
step before a node does it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: More held-out rows tell no more about the loss; the others are trained on.
VALIDATION_ROWS_MAX = 1_000
_SHUFFLE, _HOLD_OUT = 0x5EED, 0xE7A1


def count_validation_rows(*, rows: int, share: float) -> int:
    """Rows that are held out: at least one when a share is asked, and never all."""
    if share <= 0 or rows < 2:
        return 0
    return min(max(1, round(share * rows)), rows - 1, VALIDATION_ROWS_MAX)


def choose_validation_rows(*, rows: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows are held out: the same ones for the same rows, share and seed.

    Returns
    -------
    bool[rows]
    """
    held_out = np.zeros(rows, dtype=np.bool_)
    count = count_validation_rows(rows=rows, share=share)
    if count:
        held_out[_seeded(seed, _HOLD_OUT).permutation(rows)[:count]] = True
    return held_out


def shuffle_rows(rows: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the training rows in an epoch."""
    return _seeded(seed, _SHUFFLE, epoch).permutation(rows)


def _seeded(seed: int, *purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed & 0xFFFFFFFF, *purpose])
