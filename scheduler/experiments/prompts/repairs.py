"""Which errors of the paper's text are repaired."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repairs:
    """Which errors of Algorithms 1 and 2 are repaired; all of them by default."""

    #: T_slo is the time left. Printed: the SLO as submitted, however long ago that was.
    time_left: bool = True
    #: Algorithm 1 allocates at most the R idle GPUs. Printed: up to R + 1 (line 7 tests
    #: ``A <= R`` before it adds one).
    pool_bound: bool = True
    #: Algorithm 2, line 12 grows the gang while time does not suffice, the time left
    #: exceeds T_cold and the cold pool has GPUs. Printed: it tests ``T_slo < T_cold``, under
    #: which the loop never ends, and otherwise never runs.
    growth: bool = True
    #: DelaySchedulable marks all k GPUs as taken until the job's end, on one clock, and may
    #: use the whole pool. Printed: line 29 leaves out the last GPU, line 30 marks one GPU
    #: and writes a length where timestamps are.
    delay: bool = True
    #: A job past saving gets an idle GPU. Printed: it is never run.
    late_jobs: bool = True


#: The algorithms letter by letter.
PRINTED = Repairs(time_left=False, pool_bound=False, growth=False, delay=False, late_jobs=False)
#: The algorithms as they must have been meant.
REPAIRED = Repairs()
