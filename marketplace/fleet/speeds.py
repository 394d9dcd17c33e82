"""The speed table: how many samples a second each kind of GPU trains.

A zone sells each node to ``jobs_per_node`` jobs at once and promises each its share of
the speed measured with that many, so a promise holds however full the node is; a job that
is alone is faster than promised and ends early.

Between measurements the table answers with a lower bound. For one GPU type and ``n`` jobs:

1. For every measured length ``L'``: the fastest row with a batch of at most ``b`` (a smaller
   batch uses the device less well, so its speed is a lower bound); when every row has a larger
   batch, the smallest one scaled by ``b / b'``.
2. The nearest ``L' >= L`` answers, as a longer sample costs more. When every row is shorter, the
   longest is scaled by tokens, ``L' / L``.
3. A length never answers faster than a shorter one, so that noise in the measurements cannot
   make a longer sample look cheaper.

The result never rises with ``L`` and never falls with ``b``, which the auction's guarantee (a price
never falls with more work) relies on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: A node or a type of nodes that differs from the others by more than this factor counts for
#: itself only.
OUTLIER_FACTOR = 4.0
#: Share of a new observation in the running mean.
OBSERVATION_WEIGHT = 0.1
#: How far observations may move a row from the self-test, as a factor either way.
OBSERVATION_BAND = 4.0


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One row of the table, of one GPU type."""

    batch_size: int
    sequence_length: int
    jobs: int
    #: Of all jobs together.
    samples_per_s: float


def total_speed(
    rows: Iterable[SpeedRow], *, batch_size: int, sequence_length: int, jobs: int
) -> float | None:
    """Samples a second of at most ``jobs`` such jobs together; ``None`` without a usable row."""
    by_length: dict[int, dict[int, SpeedRow]] = {}
    for row in rows:
        if row.jobs > jobs or row.samples_per_s <= 0:
            continue
        batches = by_length.setdefault(row.sequence_length, {})
        known = batches.get(row.batch_size)
        if known is None or row.jobs > known.jobs:
            batches[row.batch_size] = row
    if not by_length:
        return None
    speed = float("inf")
    for length in sorted(by_length):
        speed = min(speed, _interpolate_at_length(by_length[length], batch_size))
        if length >= sequence_length:
            return speed
    return speed * max(by_length) / sequence_length


def _interpolate_at_length(batches: Mapping[int, SpeedRow], batch_size: int) -> float:
    smaller = [row.samples_per_s for batch, row in batches.items() if batch <= batch_size]
    if smaller:
        return max(smaller)
    smallest = min(batches)
    return batches[smallest].samples_per_s * batch_size / smallest


def observed_speed(*, current: float, measured: float | None, observed: float) -> float:
    """The row's speed after one more observation.

    The band keeps one broken or boastful node from moving what every node of its type
    is held to.
    """
    if not 0 < observed < float("inf"):
        return current
    if measured is not None:
        observed = min(max(observed, measured / OBSERVATION_BAND), measured * OBSERVATION_BAND)
    return current + OBSERVATION_WEIGHT * (observed - current)
