"""Measured seconds per iteration, by GPUs and configuration (Ymir, section 4.3)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeTable:
    """The look-up table S(a, cfgs)."""

    #: Seconds per iteration by configuration and number of GPUs.
    measured: Mapping[str, Mapping[int, float]]

    def iteration_s(self, gpus: int, configuration: str) -> float:
        """Seconds of one iteration.

        Between measured counts it goes straight in logarithms of both, as speed-ups of
        data-parallel jobs do; outside of them nothing is guessed.

        Raises
        ------
        KeyError
            For a configuration that was not measured.
        ValueError
            For fewer or more GPUs than were measured.
        """
        row = self.measured[configuration]
        if gpus in row:
            return row[gpus]
        counts = sorted(row)
        if not counts or not counts[0] < gpus < counts[-1]:
            raise ValueError(
                f"{configuration} was not measured on {gpus} GPUs, only on "
                f"{', '.join(map(str, counts)) or 'none'}; measure it there"
            )
        upper = counts[bisect_left(counts, gpus)]
        lower = counts[bisect_left(counts, gpus) - 1]
        share = math.log(gpus / lower) / math.log(upper / lower)
        return row[lower] ** (1.0 - share) * row[upper] ** share

    def execution_s(self, iterations: float, gpus: int, configuration: str) -> float:
        """Seconds a job runs (equation 5): iterations times seconds of one."""
        return iterations * self.iteration_s(gpus, configuration)
