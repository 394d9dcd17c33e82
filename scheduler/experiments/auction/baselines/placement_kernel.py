"""Compiled placement: the fastest node with room in every slot from the first on."""

from __future__ import annotations

from scheduler.auction.search.kernels.compiled import Floats, Ints, compiled


@compiled
def place_soonest(
    free_compute: Floats,
    free_memory: Floats,
    load: Ints,
    rate: Floats,
    memory: float,
    work: float,
    first: int,
    last: int,
    alone: bool,
    rows: Ints,
    places: Ints,
) -> int:
    """Find the schedule that ends soonest; nothing is reserved.

    Parameters
    ----------
    free_compute, free_memory : float64[slot, place]
    load : int64[slot, place]
        Tasks in each cell.
    rate : float64[place]
    memory, work : float
    first, last : int
        Rows, inclusive.
    alone : bool
        Only cells without any task.
    rows, places : int64[slots]
        Filled with the cells.

    Returns
    -------
    int
        Cells; 0 when the work does not fit.
    """
    done = 0.0
    count = 0
    for t in range(first, last + 1):
        best = -1
        for k in range(rate.shape[0]):
            if (
                rate[k] <= 0
                or free_compute[t, k] < rate[k] * (1 - 1e-9)
                or free_memory[t, k] < memory * (1 - 1e-9)
                or (alone and load[t, k] > 0)
            ):
                continue
            # Among the fastest, the fullest.
            if (
                best < 0
                or rate[k] > rate[best]
                or (rate[k] == rate[best] and free_compute[t, k] < free_compute[t, best])
            ):
                best = k
        if best >= 0:
            rows[count] = t
            places[count] = best
            count += 1
            done += rate[best]
            if done >= work * (1 - 1e-12):
                return count
    return 0
