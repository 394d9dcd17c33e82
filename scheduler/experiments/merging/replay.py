"""What the market makes of measured warm starts: ``python -m scheduler merging replay FILE``.

The file holds the JSON lines of ``python -m workers.bench transfer --out FILE``. Each task is a job
that is quoted twice: once with the adapter of another task that the probe finds best (*mixed*),
once with one of its own task that was trained on other rows (*near duplicates*). What such starts
need is learnt on the tasks of other families, never on the job's own. Then the job runs as it was
measured: to its target, on beyond the steps that were sold, or again from the base; and its loss is
compared with that of the cold run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.merging.warm_starts import (
    ROYALTY_PERCENT,
    Likeness,
    choose_start,
    find_target_loss,
    find_warm_steps,
    judge_likeness,
    quote_share,
)

#: A loss so much above the cold run's is within what another order of the rows does.
AS_GOOD = 1.05
#: What a start needed that began again.
TWO_RUNS = 2.0
#: Families of tasks that the rules' constants were chosen on; the others were not looked at.
TUNED_ON = ("reply", "units")

Row = Mapping[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredStart:
    """A job, its best donor, and its losses by how many steps it was sold."""

    target: str
    base_loss: float
    #: Of the donor as the job begins with it, on the job's held-out rows, which stands for the
    #: probe's; and on its own at its end.
    probed_loss: float
    donor_loss: float
    cold_loss: float
    total_steps: int
    #: Steps between evaluations.
    every: int
    #: Losses at each evaluation, from step 0 to the cold run's end, by the steps sold.
    runs: Mapping[int, tuple[float, ...]]

    @property
    def family(self) -> str:
        return self.target.split()[0]

    @property
    def likeness(self) -> Likeness | None:
        """``None``: the donor does not know enough of the rows."""
        if choose_start(self.base_loss, [self.probed_loss]) is None:
            return None
        return judge_likeness(self.base_loss, self.probed_loss, donor_loss=self.donor_loss)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job, as shares of the cold work."""

    sold: float
    #: Work beyond that sold.
    added: float
    #: Its loss over the cold run's.
    loss_ratio: float
    is_warm: bool


def replay(rows: Sequence[Row]) -> dict[str, Any]:
    """Quote and run every job of a transfer experiment.

    Parameters
    ----------
    rows : sequence of mapping
        As ``workers.bench transfer`` writes them; a run that was broken off is replayed as far as
        it went.

    Returns
    -------
    dict
        By ``mixed`` and ``near_duplicates``, each over ``all`` jobs and over those ``held_out``,
        whose families had no part in choosing the rules' constants: price cut with its 95 %
        interval, the same after the royalty, what the market adds, the most that a job is sold,
        and the loss delivered over the cold run's.

    Raises
    ------
    ValueError
        The rows hold no start that was sold.
    """
    found: defaultdict[tuple[bool, int, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["form"].startswith("sold"):
            found[row["same_task"], row["seed"], row["target"]].append(row)
    if not found:
        raise ValueError("no start of the file was sold")
    report: dict[str, Any] = {"seeds": sorted({seed for _, seed, _ in found})}
    for name, is_same in (("mixed", False), ("near_duplicates", True)):
        jobs = [_read(of) for (same, _, _), of in sorted(found.items()) if same is is_same]
        held_out = [job for job in jobs if job.family not in TUNED_ON]
        report[name] = {
            "all": _describe([run_job(job, jobs) for job in jobs]),
            "held_out": _describe([run_job(job, jobs) for job in held_out]),
        }
    return report


def run_job(job: MeasuredStart, jobs: Sequence[MeasuredStart]) -> Outcome:
    """Quote a job by the others' starts, and run it.

    Parameters
    ----------
    jobs : sequence of MeasuredStart
        Those of the job's own family are not learnt from.
    """
    likeness = job.likeness
    if likeness is None:
        return Outcome(1.0, 0.0, 1.0, is_warm=False)
    others = [one for one in jobs if one.family != job.family and one.likeness is likeness]
    share = quote_share(likeness, [measure_need(one) for one in others])
    steps = find_warm_steps(share, total_steps=job.total_steps)
    if steps >= job.total_steps:
        return Outcome(1.0, 0.0, 1.0, is_warm=False)
    done, loss = _run(job, _pick_run(job, steps), steps)
    sold = steps / job.total_steps
    return Outcome(sold, done - sold, loss / job.cold_loss, is_warm=True)


def measure_need(job: MeasuredStart) -> float:
    """Share of the cold work after which the job is at its target, by the run that is there first.

    ``TWO_RUNS`` where none is.
    """
    return min(_run(job, losses, sold)[0] for sold, losses in job.runs.items())


def _pick_run(job: MeasuredStart, steps: int) -> tuple[float, ...]:
    """The run that was sold so many steps, or the most below."""
    fewer = [sold for sold in job.runs if sold <= steps]
    return job.runs[max(fewer, default=min(job.runs))]


def _run(job: MeasuredStart, losses: Sequence[float], steps: int) -> tuple[float, float]:
    """Share of the cold work that is done, and the loss that is delivered."""
    likeness = job.likeness
    assert likeness is not None
    target = find_target_loss(likeness, donor_loss=job.donor_loss, probed_loss=job.probed_loss)
    for at in range(steps // job.every, len(losses)):
        if losses[at] <= target:
            return max(steps, at * job.every) / job.total_steps, losses[at]
    return TWO_RUNS, job.cold_loss


def _read(rows: Sequence[Row]) -> MeasuredStart:
    first = rows[0]
    return MeasuredStart(
        target=first["target"],
        base_loss=first["base_loss"],
        probed_loss=first["losses"][0],
        donor_loss=first["donor_after"],
        cold_loss=first["cold_losses"][-1],
        total_steps=(len(first["cold_losses"]) - 1) * first["every"],
        every=first["every"],
        runs={row["sold"]: tuple(row["losses"]) for row in rows},
    )


def _describe(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    cuts = np.array([1.0 - one.sold for one in outcomes])
    ratios = np.array([one.loss_ratio for one in outcomes])
    return {
        "jobs": len(outcomes),
        "warm": sum(one.is_warm for one in outcomes),
        "begun_again": sum(one.sold + one.added >= TWO_RUNS for one in outcomes),
        "price_cut": _mean(cuts),
        "interval": _half_width(cuts),
        "after_royalty": _mean(cuts * (1.0 - ROYALTY_PERCENT / 100)),
        "house_adds": _mean(np.array([one.added for one in outcomes])),
        "most_sold": round(max((one.sold for one in outcomes), default=1.0), 4),
        "as_good_as_cold": _mean(ratios <= AS_GOOD),
        "loss_over_cold": [round(float(of), 3) for of in np.quantile(ratios, (0.0, 0.5, 0.95, 1.0))]
        if len(ratios)
        else None,
    }


def _mean(values: NDArray[Any]) -> float:
    return round(float(values.mean()), 4) if len(values) else 0.0


def _half_width(values: Floats) -> float | None:
    """Half of the mean's 95 % interval by the normal distribution."""
    if len(values) < 2:
        return None
    return round(float(1.96 * values.std(ddof=1) / np.sqrt(len(values))), 4)
