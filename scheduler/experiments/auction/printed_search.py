"""The paper's Algorithm 2 as printed, compiled: what exact search is measured against.

Kept for reproduction and for benchmarks; the engine never calls it. It is not
exact with max prices (one label per amount of work cannot carry two maxima), and
it never uses slot a + h (line 9).
"""

from __future__ import annotations

import numpy as np

from scheduler.auction.search.kernels.compiled import INFINITY, Floats, Ints, compiled


@compiled
def printed_dp(
    lam: Floats,
    phi: Floats,
    cost: Floats,
    steps: Ints,
    rate: Floats,
    memory: float,
    demand: int,
    first: int,
    last: int,
) -> float:
    """Evaluate ``findSchedule`` (eq. 13) for one vendor.

    Parameters
    ----------
    lam, phi, cost : float64[slot, node]
        Duals before this task, and e_ikt.
    steps : int64[node]
        s_ik in steps of the sample grid.
    rate : float64[node]
        s_ik in samples.
    memory : float
        r_i.
    demand : int
        M_i in steps of the sample grid.
    first, last : int
        a + h and d.

    Returns
    -------
    float
        dp[d, M]; infinity when no schedule is found. Labels carry the running
        maxima of both duals, as line 11 asks. Where w - s falls below 0, which the
        paper leaves undefined, the work is complete: the label of 0 is used.
    """
    slots = last - first + 1
    nodes = rate.shape[0]
    paid = np.full((slots, demand + 1), INFINITY)
    high_lam = np.zeros((slots, demand + 1))
    high_phi = np.zeros((slots, demand + 1))
    done = np.zeros((slots, demand + 1))
    cells = np.zeros((slots, demand + 1))
    paid[:, 0] = 0.0
    for w in range(1, demand + 1):
        for i in range(1, slots):
            t = first + i
            best = paid[i - 1, w]
            best_lam = high_lam[i - 1, w]
            best_phi = high_phi[i - 1, w]
            best_done = done[i - 1, w]
            best_cells = cells[i - 1, w]
            for k in range(nodes):
                if steps[k] <= 0:
                    continue
                v = max(w - steps[k], 0)
                if paid[i - 1, v] == INFINITY:
                    continue
                new_lam = max(high_lam[i - 1, v], lam[t, k])
                new_phi = max(high_phi[i - 1, v], phi[t, k])
                new_done = done[i - 1, v] + rate[k]
                new_cells = cells[i - 1, v] + 1.0
                # Increment of (12): the maxima apply to everything chosen so far.
                change = (
                    new_lam * new_done
                    - high_lam[i - 1, v] * done[i - 1, v]
                    + memory * (new_phi * new_cells - high_phi[i - 1, v] * cells[i - 1, v])
                    + cost[t, k]
                )
                if paid[i - 1, v] + change < best:
                    best = paid[i - 1, v] + change
                    best_lam = new_lam
                    best_phi = new_phi
                    best_done = new_done
                    best_cells = new_cells
            paid[i, w] = best
            high_lam[i, w] = best_lam
            high_phi[i, w] = best_phi
            done[i, w] = best_done
            cells[i, w] = best_cells
    return float(paid[slots - 1, demand])
