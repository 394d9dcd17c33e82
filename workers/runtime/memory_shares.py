"""How the jobs and answers of a node share its memory: packs are sized so that all of them fit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import torch

from workers.protocol.memory import GB
from workers.runtime.memory_plan import fit
from workers.runtime.resident import ResidentBase
from workers.runtime.resident_bases import ResidentBases
from workers.runtime.running_job import RunningJob

log = logging.getLogger(__name__)


class MemoryShares:
    """Sizes the packs of each base, on the loop's thread only.

    Parameters
    ----------
    running : mapping of str to RunningJob
        The jobs of the node as they come and go, by id.
    measure_answers_gb : callable
        What keys and values of answers take.
    """

    def __init__(
        self,
        *,
        residents: ResidentBases,
        running: Mapping[str, RunningJob],
        measure_answers_gb: Callable[[], float],
    ) -> None:
        self._residents = residents
        self._running = running
        self._measure_answers_gb = measure_answers_gb

    def fit(self, resident: ResidentBase, newcomer: RunningJob | None = None) -> None:
        """Size the packs so that all of a base's jobs fit.

        Raises
        ------
        SystemFault
            When the newcomer does not fit beside the others; nothing is changed then.
        """
        jobs = [r for r in self._running.values() if r.resident is resident]
        if newcomer is not None:
            jobs.append(newcomer)
        if not jobs:
            return
        others_gb = sum(
            other.plan.base_gb for other in self._residents.list() if other is not resident
        )
        others_gb += sum(
            r.resident.compute_job_gb(r.job)
            for r in self._running.values()
            if r.resident is not resident
        )
        others_gb += self._measure_answers_gb()
        others_gb += sum(one.adapters.held_bytes for one in self._residents.list()) / GB
        try_fit = partial(
            fit,
            resident.plan,
            needs=[r.job.memory_need for r in jobs],
            others_gb=others_gb,
            longest_tokens=max(r.longest_tokens for r in jobs),
        )
        found = try_fit()
        if found.token_budget < resident.trainer.token_budget:
            # those in flight are of the old size
            resident.trainer.land()
        resident.trainer.token_budget = found.token_budget
        resident.model.checkpoint_layers = found.recompute
        resident.model.spills = found.spills

    def forget_peak(self) -> None:
        """Measure from now on: a job's peak is that of its own time here."""
        for device in self._residents.devices:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)

    def note_step(self, resident: ResidentBase, jobs: list[RunningJob]) -> None:
        """Feed what was measured back into the plan, and into the jobs' reports."""
        trainer = resident.trainer
        if trainer.saved_per_token is not None:
            resident.note_pack(gb=trainer.saved_per_token * trainer.last_pack / 1e9)
            trainer.saved_per_token = None
        for running in jobs:
            used = self._measure_gb(resident)
            running.peak_memory_gb = max(used, running.peak_memory_gb or 0.0)

    def _measure_gb(self, resident: ResidentBase) -> float:
        """The engine's memory: the device's own count, or on a CPU what the parts add up to."""
        devices = self._residents.devices
        if devices[0].type == "cuda":
            return sum(torch.cuda.max_memory_allocated(device) for device in devices) / GB
        jobs = sum(r.resident.compute_job_gb(r.job) for r in self._running.values())
        bases = sum(other.plan.base_gb for other in self._residents.list())
        return bases + jobs + resident.activations_gb
