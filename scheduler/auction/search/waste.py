"""What the usual rates cannot fill of a node, by which ties between nodes are broken."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Parts that a node's capacity is seen in when nodes are packed.
WASTE_UNITS = 2048


@lru_cache(maxsize=64)
def measure_unfilled(rates: tuple[float, ...], *, unit: float) -> Floats:
    """Give what no mix of rates fills of 0 to ``WASTE_UNITS`` units, in samples.

    Rates are rounded up to whole units, so what counts as filled does fit.
    """
    sizes = [n for rate in rates if 0 < (n := math.ceil(rate / unit - 1e-6)) <= WASTE_UNITS]
    if not sizes:
        return np.zeros(WASTE_UNITS + 1)
    filled = np.zeros(WASTE_UNITS + 1, np.int64)
    for n in range(1, WASTE_UNITS + 1):
        # Either a unit stays empty, or some rate ends here.
        filled[n] = max([filled[n - 1], *(filled[n - s] + s for s in sizes if s <= n)])
    left: Floats = np.asarray(np.arange(WASTE_UNITS + 1) - filled, np.float64)
    return left * unit
