"""Days of bids as section 5.1 describes them; what it leaves open is a field here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import Literal

import numpy as np

from scheduler.experiments.tiers.workload import Workload
from scheduler.types import LaborVendor, NodeSpec, Task

Mix = Literal["a100", "a40", "mixed"]
Deadlines = Literal["uniform", "lognormal", "tight", "loose"]
Shape = Literal["poisson", "morning", "evening", "two peaks", "trace"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One setting; the comment on a field says whether the paper fixes it."""

    name: str
    #: Paper: 144 slots of 10 minutes.
    slots: int = 144
    #: Paper: 50 to 200.
    nodes: int = 100
    #: Paper: A100 (80 GB), A40 (48 GB), or both; shares open, half and half here.
    mix: Mix = "mixed"
    #: Paper: Poisson with mean 30, 50 or 80.
    bids_per_slot: float = 50.0
    #: Paper: Poisson or a trace. The two rush hours are ours, for wrong forecasts.
    shape: Shape = "poisson"
    #: Mean bids by slot relative to each other, for ``shape="trace"``.
    profile: tuple[float, ...] = ()
    #: Open: samples per slot of an A100 and of an A40 (C_kp).
    a100_capacity: float = 16_000.0
    a40_capacity: float = 8_000.0
    #: Paper.
    a100_gb: float = 80.0
    a40_gb: float = 48.0
    #: Open: r_b.
    base_memory_gb: float = 2.0
    #: Open: provider's ask for a slot; the unit of money is open too.
    a100_ask: float = 9_000.0
    a40_ask: float = 5_000.0
    #: Open: share by which asks of one type lie apart, up and down, and how many there are.
    ask_spread: float = 0.0
    different_asks: int = 10
    #: Open: batch sizes, samples per slot on an A100 for each, GB for each.
    a100_rates: tuple[float, ...] = (1_900.0, 2_900.0, 3_700.0)
    task_gb: tuple[float, ...] = (3.1, 4.7, 7.9)
    #: Open: speed of an A40 as a share of an A100's.
    a40_speed: float = 0.46
    #: Paper: uniform on 1..5 epochs and 5,000..20,000 samples.
    most_epochs: int = 5
    samples: tuple[int, int] = (5_000, 20_000)
    #: Open: worth per sample, uniform.
    worth_per_sample: tuple[float, float] = (0.5, 4.0)
    #: Open: where above zero, worth is lognormal about the middle of these with this sigma.
    worth_sigma: float = 0.0
    #: Paper names several ways to draw deadlines, without numbers. Here the window
    #: is the shortest time on an A100 times a factor: uniform on 1.2..4, lognormal
    #: around 2, tight (1.1..1.6) or loose (3..8); cut at the end of the day.
    deadlines: Deadlines = "uniform"
    #: Open: share of tasks whose data need cleaning; number of vendors varies in
    #: figure 5; price as a share of the worth; delay in slots, uniform.
    cleaning_share: float = 1 / 3
    vendors: int = 3
    vendor_price: tuple[float, float] = (0.02, 0.2)
    vendor_delay_slots: tuple[int, int] = (0, 6)

    def fleet(self) -> list[NodeSpec]:
        """Give the nodes, the two types in turn."""
        made: list[NodeSpec] = []
        for k in range(self.nodes):
            fast = self.mix == "a100" or (self.mix == "mixed" and k % 2 == 0)
            made.append(
                NodeSpec(
                    id=f"node-{k}",
                    gpu_type="a100" if fast else "a40",
                    compute_capacity=self.a100_capacity if fast else self.a40_capacity,
                    memory_capacity=self.a100_gb if fast else self.a40_gb,
                    ask=(self.a100_ask if fast else self.a40_ask) * self._ask_factor(k),
                )
            )
        return made

    def with_own_asks(self, spread: float) -> Scenario:
        """Give the same days with an own ask on every node, evenly up to ``spread`` apart."""
        of_a_type = -(-self.nodes // 2) if self.mix == "mixed" else self.nodes
        return replace(self, ask_spread=spread, different_asks=of_a_type)

    def _ask_factor(self, k: int) -> float:
        if self.ask_spread == 0 or self.different_asks < 2:
            return 1.0
        place = (k // 2 if self.mix == "mixed" else k) % self.different_asks
        return 1.0 + self.ask_spread * (2.0 * place / (self.different_asks - 1) - 1.0)

    def day(self, seed: int) -> list[Task]:
        """Give one day's tasks in order of arrival; the same for the same seed."""
        rng = np.random.default_rng([seed, 2024])
        counts = rng.poisson(self.bids_per_slot * self._profile())
        tasks: list[Task] = []
        for slot, count in enumerate(counts.tolist()):
            tasks.extend(self._task(rng, slot, j) for j in range(count))
        return tasks

    def _profile(self) -> np.ndarray:
        hours = np.arange(self.slots) / self.slots
        match self.shape:
            case "poisson":
                shape = np.ones(self.slots)
            case "morning":
                shape = 0.4 + np.exp(-(((hours - 0.25) / 0.1) ** 2)) * 3.0
            case "evening":
                shape = 0.4 + np.exp(-(((hours - 0.7) / 0.1) ** 2)) * 3.0
            case "two peaks":
                peaks = [np.exp(-(((hours - at) / 0.08) ** 2)) for at in (0.25, 0.75)]
                shape = 0.4 + 3.0 * np.sum(peaks, axis=0)
            case "trace":
                at = np.linspace(0, len(self.profile) - 1, self.slots)
                shape = np.interp(at, np.arange(len(self.profile)), self.profile)
        return shape / shape.mean()

    def _task(self, rng: np.random.Generator, slot: int, j: int) -> Task:
        batch = int(rng.integers(len(self.a100_rates)))
        rate = self.a100_rates[batch]
        samples = int(rng.integers(self.samples[0], self.samples[1] + 1))
        work = float(samples * int(rng.integers(1, self.most_epochs + 1)))
        worth = work * self._worth_of_a_sample(rng)
        window = int(np.ceil(work / rate * self._slack(rng)))
        cleaning = bool(rng.random() < self.cleaning_share) and self.vendors > 0
        offers = tuple(
            LaborVendor(
                id=f"vendor-{n}",
                price=worth * float(rng.uniform(*self.vendor_price)),
                delay_slots=int(
                    rng.integers(self.vendor_delay_slots[0], self.vendor_delay_slots[1] + 1)
                ),
            )
            for n in range(self.vendors if cleaning else 0)
        )
        return Task(
            id=f"task-{slot}-{j}",
            arrival_slot=slot,
            deadline_slot=min(self.slots - 1, slot + window),
            compute_demand=work,
            memory_demand=self.task_gb[batch],
            bid=worth,
            rates={"a100": rate, "a40": rate * self.a40_speed},
            vendors=offers,
        )

    def _worth_of_a_sample(self, rng: np.random.Generator) -> float:
        least, most = self.worth_per_sample
        if self.worth_sigma > 0:
            return float(rng.lognormal(log((least + most) / 2), self.worth_sigma))
        return float(rng.uniform(least, most))

    def _slack(self, rng: np.random.Generator) -> float:
        match self.deadlines:
            case "uniform":
                return float(rng.uniform(1.2, 4.0))
            case "lognormal":
                return max(1.1, float(rng.lognormal(log(2.0), 0.5)))
            case "tight":
                return float(rng.uniform(1.1, 1.6))
            case "loose":
                return float(rng.uniform(3.0, 8.0))


#: Past days of a trace that a forecast may look at.
TRACE_PAST_DAYS = 5


def trace_days(
    trace: Workload, *, seed: int, slots: int = 144
) -> tuple[tuple[float, ...], list[tuple[float, ...]]]:
    """Give one day of a trace, and the days before it, as submissions by slot.

    The day is drawn by the seed among those with submissions enough and such a day
    before them. The last ``TRACE_PAST_DAYS`` before it are given, latest first,
    quieter ones left out.

    Raises
    ------
    ValueError
        If the trace has not two days with a submission for every fourth slot.
    """
    days = (trace.arrive_s // 86_400).astype(np.int64)
    numbers, counts = np.unique(days, return_counts=True)
    busy: list[int] = numbers[counts >= slots // 4].tolist()
    if len(busy) < 2:
        raise ValueError(
            f"trace {trace.name}: no two days have {slots // 4} submissions; take a longer trace"
        )
    at = 1 + int(np.random.default_rng(seed).integers(len(busy) - 1))
    before = busy[max(at - TRACE_PAST_DAYS, 0) : at][::-1]

    def profile(day: int) -> tuple[float, ...]:
        times = trace.arrive_s[days == day] - day * 86_400
        by_slot = np.bincount((times // (86_400 / slots)).astype(int), minlength=slots)
        return tuple(map(float, by_slot[:slots].tolist()))

    return profile(busy[at]), [profile(day) for day in before]
