"""What the market would have made of measured pairs: ``python -m scheduler merging replay FILE``.

The file holds the JSON lines of ``python -m workers.bench transfer --out FILE``. Each target is a
job that is quoted twice: once with the adapters of all other tasks (*mixed*), once with one of its
own task that was trained on other rows (*near duplicates*). What such starts need is learnt on the
targets of the other seeds, or with one seed on the other targets, and never on the job quoted. The
guarantee is the cold run's own final loss: a start is sold its share, and what it needs beyond that
is the market's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.merging.warm_starts import (
    Likeness,
    choose_start,
    find_warm_steps,
    judge_likeness,
    predict_target_loss,
    quote_share,
)

#: A donor's B as it is, and by half.
WHOLE, HALF = "temporal", "temporal, B scaled"
#: Evaluations of a job whose owner leaves them to the market.
EVALUATIONS = 10
#: A donor's owner gets this share of what is saved.
ROYALTY = 0.1
#: Standard errors above the mean that are compared.
MARGINS = (0.0, 0.5, 1.0, 2.0)

Row = Mapping[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReplayedStart:
    """A measured job and the start that the market would have chosen for it."""

    seed: int
    target: str
    likeness: Likeness
    #: Share of the cold job's steps after which it was where the cold one ended; at most 1.
    needed: float
    total_steps: int
    #: The predicted target loss as a multiple of the cold run's final loss; ``None``: not recorded.
    target_ratio: float | None


@dataclass(frozen=True, slots=True)
class ColdStart:
    """A measured job for which no donor was good enough."""

    seed: int
    target: str


def replay(rows: Sequence[Row]) -> dict[str, Any]:
    """Quote every target of a transfer experiment, each with what others' starts needed.

    Parameters
    ----------
    rows : sequence of mapping
        As ``workers.bench transfer`` writes them; a run that was broken off is replayed as far as
        it went.

    Returns
    -------
    dict
        By ``mixed`` and ``near_duplicates`` and by margin: jobs, price cut with its 95 % interval,
        the same after the royalty, what the market adds and the most that a job is sold, all as
        shares of the cold work.

    Raises
    ------
    ValueError
        The rows hold no target of which every start the market would choose was measured.
    """
    pairs = {(row["form"], row["seed"], row["donor"], row["target"]): row for row in rows}
    targets = sorted({(row["seed"], row["target"]) for row in rows if row["form"] == HALF})
    jobs = {
        "mixed": [_choose(pairs, rows, *target, same_task=False) for target in targets],
        "near_duplicates": [_choose(pairs, rows, *target, same_task=True) for target in targets],
    }
    known = {kind: [job for job in found if job is not None] for kind, found in jobs.items()}
    if not any(known.values()):
        raise ValueError("no target of the file is measured whole")
    return {
        "seeds": sorted({row["seed"] for row in rows}),
        "targets": len(targets),
        "needed": _describe_needs([job for found in known.values() for job in found]),
    } | {kind: [_quote_all(found, margin) for margin in MARGINS] for kind, found in known.items()}


def _choose(
    pairs: Mapping[tuple[str, int, str, str], Row],
    rows: Sequence[Row],
    seed: int,
    target: str,
    *,
    same_task: bool,
) -> ReplayedStart | ColdStart | None:
    """The market's choice among a target's donors; ``None``: what it chooses was not measured."""
    measured = [
        row for row in rows if (row["form"], row["seed"], row["target"]) == (HALF, seed, target)
    ]
    base_loss = measured[0]["base_loss"]
    losses = {
        row["donor"]: base_loss + row["probe"]
        for row in measured
        if (row["donor"] == target) is same_task
    }
    probed = pairs.get(("probes", seed, "", target))
    if probed is not None and not same_task:
        losses = dict(probed["losses"])
    if not losses:
        return None
    at = choose_start(base_loss, list(losses.values()))
    if at is None:
        return ColdStart(seed, target)
    donor = list(losses)[at]
    likeness = judge_likeness(base_loss, losses[donor])
    row = pairs.get((WHOLE if likeness is Likeness.NEAR else HALF, seed, donor, target))
    return None if row is None else _read_start(row, likeness)


def _read_start(row: Row, likeness: Likeness) -> ReplayedStart:
    cold_losses, ratio = row.get("cold_losses"), None
    total_steps = row["cold_steps"]
    if cold_losses is not None:
        total_steps = (len(cold_losses) - 1) * row["every"]
        target = predict_target_loss(
            row["base_loss"], donor_before=row["donor_before"], donor_after=row["donor_after"]
        )
        ratio = None if target is None else target / cold_losses[-1]
    needed = min(1.0, row["steps"] / total_steps)
    return ReplayedStart(row["seed"], row["target"], likeness, needed, total_steps, ratio)


def _quote_all(jobs: Sequence[ReplayedStart | ColdStart], margin: float) -> dict[str, Any]:
    """Quote each job by what the starts of the others needed."""
    sold: list[float] = []
    added: list[float] = []
    for job in jobs:
        if isinstance(job, ColdStart):
            sold.append(1.0)
            added.append(0.0)
            continue
        observed = _list_others(jobs, job)
        share = quote_share(job.likeness, observed, margin=margin)
        interval = -(-job.total_steps // (EVALUATIONS - 1))
        steps = find_warm_steps(share, total_steps=job.total_steps, interval=interval)
        sold.append(steps / job.total_steps)
        added.append(max(0.0, job.needed - sold[-1]))
    cuts = 1.0 - np.asarray(sold)
    return {
        "margin": margin,
        "jobs": len(jobs),
        "warm": sum(isinstance(job, ReplayedStart) for job in jobs),
        "price_cut": _mean(cuts),
        "interval": _half_width(cuts),
        "after_royalty": _mean(cuts * (1.0 - ROYALTY)),
        "house_adds": _mean(np.asarray(added)),
        "most_sold": round(float(max(sold, default=1.0)), 4),
    }


def _list_others(jobs: Sequence[ReplayedStart | ColdStart], job: ReplayedStart) -> list[float]:
    """What starts of the job's kind needed on other seeds; with one seed, on other targets."""
    starts = [
        one for one in jobs if isinstance(one, ReplayedStart) and one.likeness is job.likeness
    ]
    if len({one.seed for one in jobs}) > 1:
        return [one.needed for one in starts if one.seed != job.seed]
    return [one.needed for one in starts if one.target != job.target]


def _describe_needs(jobs: Sequence[ReplayedStart | ColdStart]) -> dict[str, Any]:
    """By likeness: starts, what they needed, and how the predicted target lay."""
    by_kind: defaultdict[Likeness, list[ReplayedStart]] = defaultdict(list)
    for job in jobs:
        if isinstance(job, ReplayedStart):
            by_kind[job.likeness].append(job)
    found: dict[str, Any] = {}
    for kind, starts in sorted(by_kind.items()):
        needed = np.array([one.needed for one in starts])
        ratios = [one.target_ratio for one in starts if one.target_ratio is not None]
        found[kind] = {
            "starts": len(starts),
            "mean": _mean(needed),
            "interval": _half_width(needed),
            "deviation": round(float(needed.std()), 4),
            "target_over_cold_loss": [
                round(float(value), 3) for value in np.quantile(ratios, (0.0, 0.5, 1.0))
            ]
            if ratios
            else None,
        }
    return found


def _mean(values: Floats) -> float:
    return round(float(values.mean()), 4) if len(values) else 0.0


def _half_width(values: Floats) -> float | None:
    """Half of the mean's 95 % interval by the normal distribution."""
    if len(values) < 2:
        return None
    return round(float(1.96 * values.std(ddof=1) / np.sqrt(len(values))), 4)
