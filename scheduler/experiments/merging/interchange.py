"""The files of ``python -m scheduler merging``: instances and profiles as JSON.

The formats are described in ``docs/algorithms/merging.md``, with examples in
``tests/data/merging``. Unknown fields are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from scheduler.experiments.merging.estimates import (
    DonorLoss,
    Estimator,
    Profile,
    build_instance,
    estimate_jobs,
    estimate_pairs,
    list_allocations,
)
from scheduler.experiments.merging.instance import Instance, Merge, Mode
from scheduler.experiments.merging.printed import merge_as_printed
from scheduler.experiments.merging.task_merger import FORMS, merge_tasks
from scheduler.experiments.merging.time_table import TimeTable
from scheduler.experiments.merging.transferability import fit_score_line

Floats = NDArray[np.float64]

#: Limits of what a file may ask for.
MOST_GPUS, MOST_JOBS, MOST_PAIRS = 100_000, 5_000, 200_000
MOST_PRINTED_JOBS = 300


def solve(data: Mapping[str, Any], *, form: str, time_limit_s: float) -> dict[str, Any]:
    """Decide the instance of a file.

    Parameters
    ----------
    data : mapping
        ``gpus``, ``jobs`` and, if there are any, ``pairs``.
    form : str
        ``printed``, ``runnable``, ``repaired`` or ``chosen``.
    time_limit_s : float
        For the solver.

    Raises
    ------
    KeyError
        For a field that is missing.
    ValueError
        For a value that cannot be meant.
    """
    instance, names = read_instance(data)
    if form != "printed":
        return _answer(merge_tasks(instance, FORMS[form], time_limit_s=time_limit_s), names, form)
    if len(names) > MOST_PRINTED_JOBS:
        raise ValueError(
            f"the printed program has a variable for every pair; at most {MOST_PRINTED_JOBS} jobs"
        )
    literal = merge_as_printed(instance, literal=True, time_limit_s=time_limit_s)
    if literal.feasible:
        return _answer(literal, names, form) | {"reading": "literal"}
    kind = merge_as_printed(instance, literal=False, time_limit_s=time_limit_s)
    return _answer(kind, names, form) | {"reading": "numbers above zero; literally infeasible"}


def estimate(data: Mapping[str, Any], *, estimator: Estimator) -> dict[str, Any]:
    """Estimate the instance of a file of profiles; the answer can be solved.

    Parameters
    ----------
    data : mapping
        ``gpus``, ``iteration_s``, ``jobs``, ``history`` and, for probes, ``probes``.
    estimator : Estimator

    Raises
    ------
    KeyError
        For a field that is missing.
    ValueError
        For a value that cannot be meant.
    """
    gpus = _count(data["gpus"], "gpus", MOST_GPUS)
    profiles = [_profile(row) for row in _list(data["jobs"], "jobs", MOST_JOBS)]
    _places([profile.id for profile in profiles])
    probes = [
        DonorLoss(str(row["donor"]), str(row["target"]), _amount(row["loss"], "loss"))
        for row in _list(data.get("probes", []), "probes", MOST_PAIRS)
    ]
    history = _list(data["history"], "history", MOST_PAIRS)
    line = fit_score_line(
        [_amount(row["score"], "score", below_zero=True) for row in history],
        [_amount(row["measured"], "measured", below_zero=True) for row in history],
    )
    table = TimeTable(
        {
            str(name): {
                _count(key, "GPUs of iteration_s", MOST_GPUS): _positive(value, "iteration_s")
                for key, value in row.items()
            }
            for name, row in data["iteration_s"].items()
        }
    )
    jobs = estimate_jobs(profiles)
    pairs = estimate_pairs(profiles, jobs, probes, line, estimator)
    instance = build_instance(profiles, jobs, pairs, table, gpus=gpus, estimator=estimator)
    written = write_instance(instance, [profile.id for profile in profiles])
    for row, job in zip(written["jobs"], jobs, strict=True):
        row["iterations"] = job.iterations
        row["iterations_as_printed"] = job.iterations_as_printed
    return written | {
        "estimates": [
            {
                "donor": pair.donor,
                "target": pair.target,
                "score": pair.score,
                "predicted": pair.predicted,
                "iterations": pair.iterations,
            }
            for pair in pairs
        ]
    }


def read_instance(data: Mapping[str, Any]) -> tuple[Instance, list[str]]:
    """An instance and the names of its units, in the order of the file."""
    gpus = _count(data["gpus"], "gpus", MOST_GPUS)
    jobs = _list(data["jobs"], "jobs", MOST_JOBS)
    pairs = _list(data.get("pairs", []), "pairs", MOST_PAIRS)
    names = [str(job["id"]) for job in jobs]
    place = _places(names)
    allocations = list_allocations(gpus)
    column = {int(a): i for i, a in enumerate(allocations)}
    first: list[int] = []
    second: list[int] = []
    spatial: list[bool] = []
    for pair in pairs:
        ends = (str(pair["first"]), str(pair["second"]))
        if ends[0] == ends[1] or any(end not in place for end in ends):
            raise ValueError(f"the pair {ends[0]}, {ends[1]} names no two jobs of the file")
        mode = str(pair["mode"])
        if mode not in (Mode.TEMPORAL, Mode.SPATIAL):
            raise ValueError(f"mode must be temporal or spatial, got {mode!r}")
        first.append(place[ends[0]])
        second.append(place[ends[1]])
        spatial.append(mode == Mode.SPATIAL)
    times = _times(jobs, column)
    alone = np.isfinite(times)
    if len(jobs) and not alone.any(axis=1).all():
        stuck = names[int(np.argmin(alone.any(axis=1)))]
        raise ValueError(f"{stuck} has no time on any number of GPUs the cluster can give")
    return Instance(
        gpus=gpus,
        allocations=allocations,
        times_s=times,
        members=np.array([_members(job.get("members", 1)) for job in jobs], np.int64),
        held=np.array([_held(job.get("gpus", 0), gpus) for job in jobs], np.int64),
        waited_s=np.array([_amount(job.get("waited_s", 0.0), "waited_s") for job in jobs]),
        first=np.array(first, np.int64),
        second=np.array(second, np.int64),
        spatial=np.array(spatial, np.bool_),
        pair_s=_times(pairs, column),
        wait_s=_amount(data.get("wait_s", 120.0), "wait_s"),
        switch_s=_amount(data.get("switch_s", 0.0), "switch_s"),
    ), names


def write_instance(instance: Instance, names: Sequence[str]) -> dict[str, Any]:
    """An instance as :func:`read_instance` reads it."""
    return {
        "gpus": instance.gpus,
        "wait_s": instance.wait_s,
        "switch_s": instance.switch_s,
        "jobs": [
            {"id": name, "times_s": _by_gpus(instance, instance.times_s[i])}
            for i, name in enumerate(names)
        ],
        "pairs": [
            {
                "first": names[int(instance.first[p])],
                "second": names[int(instance.second[p])],
                "mode": str(Mode.SPATIAL if instance.spatial[p] else Mode.TEMPORAL),
                "times_s": _by_gpus(instance, instance.pair_s[p]),
            }
            for p in range(len(instance.first))
        ],
    }


def _by_gpus(instance: Instance, times: Floats) -> dict[str, float]:
    return {
        str(int(a)): float(seconds)
        for a, seconds in zip(instance.allocations, times, strict=True)
        if math.isfinite(seconds)
    }


def _answer(merge: Merge, names: Sequence[str], form: str) -> dict[str, Any]:
    return {
        "form": form,
        "feasible": merge.feasible,
        "optimal": merge.optimal,
        "objective": merge.objective if merge.feasible else None,
        "bound": merge.bound if math.isfinite(merge.bound) else None,
        "gpus_used": sum(found.gpus for found in merge.assignments),
        "assignments": [
            {
                "jobs": [names[unit] for unit in (found.unit, found.partner) if unit is not None],
                "mode": str(found.mode),
                "gpus": found.gpus,
            }
            for found in merge.assignments
        ],
        "waiting": [names[unit] for unit in merge.waiting],
        "columns": merge.columns,
        "pairs": merge.pairs,
    }


def _profile(row: Mapping[str, Any]) -> Profile:
    points = _list(row["losses"], "losses", 1_000_000)
    embedding = row.get("embedding")
    base_loss = row.get("base_loss")
    return Profile(
        id=str(row["id"]),
        configuration=str(row["configuration"]),
        batch=_count(row["batch"], "batch", 1_000_000_000),
        rows=_count(row["rows"], "rows", 1_000_000_000),
        iterations=np.array([_amount(k, "iteration") for k, _ in points]),
        losses=np.array([_positive(loss, "loss") for _, loss in points]),
        pipeline=bool(row.get("pipeline", False)),
        done=_amount(row.get("done", 0.0), "done"),
        embedding=None
        if embedding is None
        else np.array([_amount(v, "embedding") for v in embedding]),
        base_loss=None if base_loss is None else _amount(base_loss, "base_loss"),
    )


def _times(rows: Sequence[Mapping[str, Any]], column: Mapping[int, int]) -> Floats:
    times = np.full((len(rows), len(column)), np.inf)
    for i, row in enumerate(rows):
        for key, value in row["times_s"].items():
            gpus = _count(key, "GPUs of times_s", MOST_GPUS)
            if gpus in column:
                times[i, column[gpus]] = _positive(value, "times_s")
    return times


def _places(names: Sequence[str]) -> dict[str, int]:
    place = {name: i for i, name in enumerate(names)}
    if len(place) < len(names):
        twice = next(name for i, name in enumerate(names) if place[name] != i)
        raise ValueError(f"two jobs are called {twice}")
    return place


def _list(value: Any, name: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list")
    found = cast(list[Any], value)
    if len(found) > most:
        raise ValueError(f"{name} has {len(found):,} entries, at most {most:,} are possible")
    return found


def _count(value: Any, name: str, most: int) -> int:
    found = int(value)
    if not 1 <= found <= most or found != float(value):
        raise ValueError(f"{name} must be a whole number from 1 to {most:,}, got {value!r}")
    return found


def _members(value: Any) -> int:
    return _count(value, "members", 2)


def _held(value: Any, gpus: int) -> int:
    return 0 if value == 0 else _count(value, "gpus of a job", gpus)


def _amount(value: Any, name: str, *, below_zero: bool = False) -> float:
    found = float(value)
    if not math.isfinite(found) or (found < 0 and not below_zero):
        raise ValueError(f"{name} must be a finite number, not below zero, got {value!r}")
    return found


def _positive(value: Any, name: str) -> float:
    found = _amount(value, name)
    if found == 0:
        raise ValueError(f"{name} must be above zero")
    return found
