"""The state of an elastic cluster: jobs alone and merged, and what a stretch of time does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.merging.transfer import TransferShares
from scheduler.experiments.merging.workload import Jobs, speed_up

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may look at: the units in the cluster, ``[U]`` each.

    A unit is a job, or two merged jobs that share their GPUs until the first is done.
    """

    now_s: float
    gpus: int
    #: The job of each unit; of two the one that came first into it.
    job: Ints
    #: Estimated seconds left on one GPU.
    left_s: Floats
    #: Speed lost per added GPU, and whether only whole servers will do.
    loss: Floats
    pipeline: Bools
    asked: Ints
    held: Ints
    waited_s: Floats
    #: Since submission.
    age_s: Floats
    #: GPU seconds received, seconds since the present GPUs were given.
    attained_s: Floats
    holding_s: Floats
    #: Jobs in it, and whether it has never run.
    members: Ints
    fresh: Bools


@dataclass(frozen=True, slots=True)
class Merging:
    """Two units to become one."""

    unit: int
    partner: int
    spatial: bool


@dataclass(frozen=True, slots=True)
class MergingPlan:
    """What a policy decides."""

    #: GPUs of each unit, those of a merged pair at its first unit, ``[U]``.
    gpus: Ints
    merges: tuple[Merging, ...] = ()
    #: Seconds the solver took; 0 where there is none, and whether it proved its answer.
    solver_s: float = 0.0
    proven: bool = True


class Cluster:
    """Jobs on GPUs.

    Parameters
    ----------
    jobs : Jobs
    gpus : int
    transfer : TransferShares
        What merging is really worth.
    switch_s : float
        Pause of a unit whose GPUs change.
    noticed : float
        Share of a job that is run before harm is noticed; 0 for two epochs, the paper's
        rule.
    """

    def __init__(
        self, jobs: Jobs, gpus: int, transfer: TransferShares, *, switch_s: float, noticed: float
    ) -> None:
        count = len(jobs)
        self.jobs, self.gpus, self.transfer = jobs, gpus, transfer
        self.switch_s = switch_s
        #: Share of the work after which a merge that does harm is given up.
        self.notice = np.full(count, noticed) if noticed > 0 else 2.0 / jobs.epochs
        self.now_s = 0.0
        self.units = np.zeros(0, np.int64)
        self.left_s = jobs.work_s.copy()
        self.held = np.zeros(count, np.int64)
        self.pause_s = np.zeros(count)
        self.finish_s = np.full(count, np.nan)
        self.waited_s = np.zeros(count)
        self.attained_s = np.zeros(count)
        self.given_s = np.zeros(count)
        self.fresh = np.ones(count, np.bool_)
        self.follower = np.full(count, -1, np.int64)
        self.follower_left_s = np.zeros(count)
        self.follower_said_s = np.zeros(count)
        self.joint = np.zeros(count, np.bool_)
        #: Whether a joint unit comes apart when its present work is done.
        self.parts = np.zeros(count, np.bool_)
        self.arrived = self.done = self.switches = 0
        self.harmed = self.warm = 0
        #: Jobs that have been in a temporal or a spatial merge.
        self.temporal = np.zeros(count, np.bool_)
        self.spatial = np.zeros(count, np.bool_)
        self.busy_gpu_s = 0.0

    def admit(self, until_s: float) -> Ints:
        """Take in the jobs that have come by then; which they are."""
        last = int(np.searchsorted(self.jobs.arrive_s, until_s, side="right"))
        new = np.arange(self.arrived, last)
        self.arrived = last
        self.units = np.concatenate([self.units, new])
        return new

    def start_warm(self, job: int, donor: int) -> None:
        """Start a fresh job from a finished one instead of the base."""
        self.left_s[job] = self._work_after(donor, job)
        self.warm += 1

    def view(self) -> View:
        """The units as a policy sees them."""
        u, jobs = self.units, self.jobs
        merged = self.follower[u] >= 0
        return View(
            now_s=self.now_s,
            gpus=self.gpus,
            job=u,
            left_s=self.left_s[u] * jobs.error[u] + self.follower_said_s[u],
            loss=jobs.loss[u],
            pipeline=jobs.pipeline[u],
            asked=jobs.asked[u],
            held=self.held[u],
            waited_s=self.waited_s[u],
            age_s=self.now_s - jobs.arrive_s[u],
            attained_s=self.attained_s[u],
            holding_s=self.now_s - self.given_s[u],
            members=1 + merged.astype(np.int64),
            fresh=self.fresh[u] & ~merged,
        )

    def apply(self, view: View, plan: MergingPlan) -> None:
        """Merge units and hand out GPUs.

        Raises
        ------
        ValueError
            When a plan gives out more GPUs than there are.
        """
        gpus = plan.gpus
        if int(gpus.sum()) > self.gpus or int(gpus.min(initial=0)) < 0:
            raise ValueError(f"a plan gives {int(gpus.sum())} of {self.gpus} GPUs")
        units = view.job
        changed = gpus != self.held[units]
        moved = units[changed]
        self.pause_s[moved] = np.where(gpus[changed] > 0, self.switch_s, 0.0)
        self.switches += int((gpus[changed] > 0).sum())
        self.given_s[moved] = self.now_s
        self.held[units] = gpus
        self.fresh[units[gpus > 0]] = False
        for merge in plan.merges:
            self._merge(int(units[merge.unit]), int(units[merge.partner]), merge.spatial)

    def advance(self, until_s: float) -> int:
        """Run until then; how many units ended or came apart."""
        units = self.units
        span = until_s - self.now_s
        running = units[self.held[units] > 0]
        idle = units[self.held[units] == 0]
        self.waited_s[idle] += span
        speed = speed_up(self.jobs.loss[running], self.held[running])
        need = self.pause_s[running] + self.left_s[running] / speed
        ending = need <= span
        going = running[~ending]
        paused = np.minimum(self.pause_s[going], span)
        self.pause_s[going] -= paused
        self.left_s[going] -= (span - paused) * speed[~ending]
        self.attained_s[going] += span * self.held[going]
        self.busy_gpu_s += span * float(self.held[going].sum())
        for unit, after in zip(running[ending].tolist(), need[ending].tolist(), strict=True):
            self._end(unit, self.now_s + after, until_s)
        if ending.any():
            self.units = self.units[np.isnan(self.finish_s[self.units])]
        self.now_s = until_s
        return int(ending.sum())

    def soonest_end_s(self) -> float:
        """When the first unit ends if nothing changes; infinite if none runs."""
        running = self.units[self.held[self.units] > 0]
        if not len(running):
            return np.inf
        speed = speed_up(self.jobs.loss[running], self.held[running])
        return self.now_s + float((self.pause_s[running] + self.left_s[running] / speed).min())

    def _merge(self, unit: int, partner: int, spatial: bool) -> None:
        self.units = self.units[self.units != partner]
        self.fresh[unit] = self.fresh[partner] = False
        self.follower[unit] = partner
        one, other = np.array([unit]), np.array([partner])
        if not spatial:
            self.temporal[[unit, partner]] = True
            self.follower_left_s[unit] = self._work_after(unit, partner)
            said = float(self.transfer.predicted_shares(one, other)[0])
            self.follower_said_s[unit] = said * self.jobs.work_s[partner] * self.jobs.error[partner]
            return
        self.spatial[[unit, partner]] = True
        share = float(self.transfer.joint_shares(one, other)[0])
        both = self.jobs.work_s[unit] + self.jobs.work_s[partner]
        self.joint[unit] = True
        self.parts[unit] = share > 1.0
        self.harmed += share > 1.0
        # What is noticed to do harm comes apart, its progress kept at the pace of alone.
        self.left_s[unit] = both * share * (self.notice[unit] if share > 1.0 else 1.0)

    def _work_after(self, donor: int, target: int) -> float:
        share = float(self.transfer.shares(np.array([donor]), np.array([target]))[0])
        if share > 1.0:
            # Given up and begun again from the base.
            self.harmed += 1
            share = 1.0 + float(self.notice[target])
        return share * float(self.jobs.work_s[target])

    def _end(self, unit: int, at_s: float, until_s: float) -> None:
        """A unit has done its present work; what follows it goes on with its GPUs."""
        from_s = self.now_s
        while True:
            gpus, partner = int(self.held[unit]), int(self.follower[unit])
            self.busy_gpu_s += gpus * (at_s - from_s)
            self.attained_s[unit] += gpus * (at_s - from_s)
            self.follower[unit], self.follower_said_s[unit] = -1, 0.0
            if self.parts[unit]:
                self._part(unit, partner)
                return
            self._finish(unit, at_s)
            if partner < 0:
                return
            if self.joint[unit]:
                self._finish(partner, at_s)
                return
            self._succeed(unit, partner, gpus, at_s)
            speed = float(speed_up(self.jobs.loss[partner : partner + 1], np.array([gpus]))[0])
            ends = at_s + float(self.pause_s[partner] + self.left_s[partner] / speed)
            if ends > until_s:
                self._run_part(partner, until_s - at_s, speed)
                return
            unit, from_s, at_s = partner, at_s, ends

    def _finish(self, job: int, at_s: float) -> None:
        self.finish_s[job] = at_s
        self.held[job] = 0
        self.done += 1

    def _succeed(self, unit: int, partner: int, gpus: int, at_s: float) -> None:
        """The target of a temporal pair goes on in the donor's runtime."""
        self.left_s[partner] = self.follower_left_s[unit]
        self.held[partner] = gpus
        self.given_s[partner] = at_s
        self.pause_s[partner] = self.switch_s
        self.waited_s[partner] = self.waited_s[unit]
        self.units = np.append(self.units, partner)

    def _run_part(self, unit: int, span: float, speed: float) -> None:
        paused = min(float(self.pause_s[unit]), span)
        self.pause_s[unit] -= paused
        self.left_s[unit] -= (span - paused) * speed
        self.attained_s[unit] += span * self.held[unit]
        self.busy_gpu_s += span * float(self.held[unit])

    def _part(self, unit: int, partner: int) -> None:
        """A joint unit that does harm comes apart; each goes on alone from what it has."""
        for job in (unit, partner):
            self.left_s[job] = self.jobs.work_s[job] * (1.0 - self.notice[unit])
        self.parts[unit] = self.joint[unit] = False
        self.held[unit] = 0
        self.units = np.append(self.units, partner)
