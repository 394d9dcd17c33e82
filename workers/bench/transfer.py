"""``python -m workers.bench transfer [--quick] [--out FILE]``: does an adapter help other tasks?

Every task is trained from the base, and then in four other ways: from every other task's adapter
with its B as it is, the same with B scaled by 0.5, from an adapter of the same task with other
rows, and together with others. Each run ends when it reaches the loss on held-out rows that the
cold run ended with. Two scores that are
known before training are compared with what was found: the donor's loss on 16 rows of the target
less the base's, and the cosine of squared gradients.

All that is at one learning rate. What the market would sell is trained as the market trains it,
under a rate that falls: cold, from the other task's adapter that the probe finds best, and from
one of the same task; each sold several numbers of steps, and then on to the cold run's last step.

One JSON line per run, then a summary in which the more frequent answer stands beside every
accuracy. With ``--out`` the lines are kept in a file; what is there already is not trained again,
so a run that was broken off goes on. ``python -m scheduler merging replay FILE`` says what the
market would have made of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workers.bench.transfer_runs import (
    BASE,
    REACHED,
    ColdRun,
    ColdRuns,
    TransferRun,
    TransferSize,
    build_job,
    draw_initial,
    look,
    probe,
    scale,
    step,
    train_together,
)
from workers.bench.transfer_tasks import TASKS, TransferTask
from workers.runtime.resident import ResidentBase, load_resident
from workers.training.job import TrainingJob

#: Form, seed, donor and target of a row.
RowName = tuple[str, int, str, str]
Rows = Iterator[dict[str, Any]]

#: Forms of a start from a donor, and the factor of its B.
SCALES = {"temporal": 1.0, "temporal, B scaled": 0.5}
#: Cold runs after whose length a run that has not got there is given up.
GIVEN_UP = 1.5
#: The schedule of jobs whose owners leave it to the house.
FALLING = "cosine"

QUICK = TransferSize(
    # two of each of two families
    tasks=tuple(TASKS[i] for i in (0, 1, 3, 4)),
    seeds=1,
    rows=64,
    batch_size=8,
    steps=24,
    every=3,
    sold_every=3,
    spatial_pairs=2,
    sold=(6, 12),
    sold_near=(3,),
)
FULL = TransferSize(
    tasks=TASKS,
    seeds=3,
    rows=80,
    batch_size=4,
    steps=32,
    every=2,
    sold_every=4,
    spatial_pairs=11,
    # the last is what the market sells
    sold=(12, 20, 27),
    sold_near=(4,),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.bench transfer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="four tasks, one seed, short runs")
    parser.add_argument("--out", type=Path, help="keep the lines here and go on from those there")
    chosen = parser.parse_args(arguments)
    size = QUICK if chosen.quick else FULL
    found = _read_rows(chosen.out) if chosen.out and chosen.out.exists() else []
    for row in measure_transfer(size, known={_name(row) for row in found}):
        found.append(row)
        line = json.dumps(row)
        print(line, flush=True)
        if chosen.out:
            with chosen.out.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    for row in summarize(found):
        print(json.dumps(row), flush=True)
    return 0


def measure_transfer(size: TransferSize, *, known: Collection[RowName] = ()) -> Rows:
    """Train everything and yield a row for each run as it is there.

    What the market would sell comes first, then related pairs: a run that is broken off has
    reported most of the findings.

    Parameters
    ----------
    known : collection of (form, seed, donor, target)
        What is not trained again.
    """
    base = load_resident(BASE, device=torch.device("cpu"), limit_gb=8.0, reproducible=True)
    # one thread: on a busy machine several wait for each other most of the time
    base.apply_threads()
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(size.seeds)
        falling = [ColdRuns(base, size, seed, Path(folder), FALLING) for seed in seeds]
        plain = [ColdRuns(base, size, seed, Path(folder), "constant") for seed in seeds]
        for cold, target in product(falling, size.tasks):
            yield from _measure_sold(base, cold, target, known)
        for cold, target in product(plain, size.tasks):
            if ("probes", cold.seed, "", target.name) not in known:
                yield _probe_donors(base, cold, target)
            related = product(_list_related(size, target), SCALES)
            yield from _measure_donors(base, cold, target, related, known)
        # The scaled form first: it is what the market uses.
        for form, cold, target in product(reversed(SCALES), plain, size.tasks):
            others = [task for task in size.tasks if task.family != target.family]
            yield from _measure_donors(base, cold, target, product(others, [form]), known)
        for cold, (one, other) in product(plain, _list_pairs(size)):
            if ("spatial", cold.seed, one.name, other.name) not in known:
                yield _measure_together(base, cold, one, other)


def _list_related(size: TransferSize, target: TransferTask) -> list[TransferTask]:
    """Other tasks of the target's family and last itself with other rows."""
    return [*(t for t in size.tasks if t.family == target.family and t is not target), target]


def _list_pairs(size: TransferSize) -> list[tuple[TransferTask, TransferTask]]:
    pairs = list(combinations(size.tasks, 2))
    return pairs[:: max(1, len(pairs) // size.spatial_pairs)][: size.spatial_pairs]


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier run; a last line that was broken off is cut from the file."""
    whole, newline, _ = path.read_text(encoding="utf-8").rpartition("\n")
    path.write_text(whole + newline, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def _name(row: dict[str, Any]) -> RowName:
    return row["form"], row["seed"], row["donor"], row["target"]


def summarize(found: Sequence[dict[str, Any]]) -> Rows:
    """What the rows say together, by form."""
    for form in SCALES:
        rows = [row for row in found if row["form"] == form]
        if not rows:
            continue
        share = np.array([row["share"] for row in rows])
        faster = share < 1.0
        related = np.array([row["related"] for row in rows])
        summary: dict[str, Any] = {
            "summary": form,
            "pairs": len(rows),
            "faster": round(float(faster.mean()), 3),
            "related_faster": round(float(faster[related].mean()), 3),
            "mean_share": round(float(share.mean()), 3),
            "majority": round(float(max(faster.mean(), 1.0 - faster.mean())), 3),
        }
        for score in ("probe", "cosine"):
            values = np.array([row[score] for row in rows])
            line = np.polyfit(values, share, 1)
            said = np.polyval(line, values) < 1.0
            summary[f"{score}_r"] = round(float(np.corrcoef(values, share)[0, 1]), 3)
            summary[f"{score}_accuracy"] = round(float((said == faster).mean()), 3)
        yield summary
    together = [row["share"] for row in found if row["form"] == "spatial"]
    if together:
        yield {
            "summary": "spatial",
            "pairs": len(together),
            "saved_work": sum(share < 1.0 for share in together),
            "mean_share": round(float(np.mean(together)), 3),
        }


def _measure_sold(
    base: ResidentBase, cold: ColdRuns, task: TransferTask, known: Collection[RowName]
) -> Rows:
    """Starts that the market would choose, by the number of steps that are sold."""
    size = cold.size
    forms = [f"sold {sold}" for sold in (*size.sold, *size.sold_near)]
    if {(form, cold.seed, task.name) for form in forms} <= {
        (form, seed, target) for form, seed, _, target in known
    }:
        # Which donor is nearest would be known only once all tasks are trained.
        return
    target = cold.get(task)
    others = [one for one in size.tasks if one is not task]
    losses = _probe_all(base, size, target, [cold.get(one) for one in others], 1.0)
    nearest = others[losses.index(min(losses))]
    wanted: list[tuple[dict[str, Any], TransferRun]] = []
    for donor_task, loss in ((nearest, min(losses)), (task, None)):
        donor, is_same = cold.get(donor_task, other_rows=donor_task is task), donor_task is task
        if loss is None:
            [loss] = _probe_all(base, size, target, [donor], 1.0)
        # An adapter of the same task is taken whole.
        factor = 1.0 if is_same else 0.5
        for sold in size.sold_near if is_same else size.sold:
            if (f"sold {sold}", cold.seed, donor_task.name, task.name) in known:
                continue
            row = _describe(f"sold {sold}", cold, donor, target) | {
                "sold": sold,
                "base_loss": round(target.base_loss, 4),
                "probe": round(loss - target.base_loss, 4),
            }
            job = cold.build_job(
                f"{donor_task.name} {sold}", target.data, steps=size.steps, sold=sold
            )
            wanted.append((row, TransferRun(job, scale(donor.adapter, factor))))
    train_together(base.trainer, [run for _, run in wanted], every=cold.every)
    for row, run in wanted:
        yield row | {"losses": _shorten(run.losses)}


def _probe_donors(base: ResidentBase, cold: ColdRuns, task: TransferTask) -> dict[str, Any]:
    """Losses of all other tasks' adapters, their B by half, on the rows of a probe."""
    size, target = cold.size, cold.get(task)
    others = [one for one in size.tasks if one is not task]
    losses = _probe_all(base, size, target, [cold.get(one) for one in others], 0.5)
    return {
        "form": "probes",
        "seed": cold.seed,
        "donor": "",
        "target": task.name,
        "base_loss": round(target.base_loss, 4),
        "losses": dict(zip((one.name for one in others), _shorten(losses), strict=True)),
    }


def _probe_all(
    base: ResidentBase,
    size: TransferSize,
    target: ColdRun,
    donors: Sequence[ColdRun],
    factor: float,
) -> list[float]:
    starts = [(target.data, scale(donor.adapter, factor)) for donor in donors]
    return probe(base, size, starts)


def _measure_donors(
    base: ResidentBase,
    cold: ColdRuns,
    task: TransferTask,
    starts: Iterable[tuple[TransferTask, str]],
    known: Collection[RowName],
) -> Rows:
    """From each donor in each form, until it is where the cold run ended or given up."""
    size = cold.size
    wanted = [
        (donor, form)
        for donor, form in starts
        if (form, cold.seed, donor.name, task.name) not in known
    ]
    if not wanted:
        return
    target = cold.get(task)
    donors = [cold.get(donor, other_rows=donor is task) for donor, _ in wanted]
    values = [
        scale(donor.adapter, SCALES[form]) for donor, (_, form) in zip(donors, wanted, strict=True)
    ]
    probes = probe(base, size, [(target.data, one) for one in values])

    def is_there(job: TrainingJob, loss: float) -> bool:
        return loss <= REACHED * target.loss

    runs = [
        TransferRun(
            cold.build_job(str(number), target.data, steps=int(GIVEN_UP * size.steps)),
            one,
            is_over=is_there,
        )
        for number, one in enumerate(values)
    ]
    train_together(base.trainer, runs, every=size.every)
    for (_, form), donor, loss, run in zip(wanted, donors, probes, runs, strict=True):
        steps = run.job.progress.step
        yield _describe(form, cold, donor, target) | {
            "share": round(steps / target.steps, 4),
            "steps": steps,
            "cold_steps": target.steps,
            "base_loss": round(target.base_loss, 4),
            "probe": round(loss - target.base_loss, 4),
            "cosine": round(_cosine(donor.embedding, target.embedding), 4),
            "losses": _shorten(run.losses),
        }


def _describe(form: str, cold: ColdRuns, donor: ColdRun, target: ColdRun) -> dict[str, Any]:
    return {
        "form": form,
        "seed": cold.seed,
        "donor": donor.task.name,
        "target": target.task.name,
        "related": donor.task.family == target.task.family,
        "same_task": donor.task is target.task,
        "donor_before": round(donor.losses[0], 4),
        "donor_after": round(donor.loss, 4),
        "every": cold.every,
        "cold_losses": _shorten(target.losses),
    }


def _shorten(losses: Sequence[float]) -> list[float]:
    return [round(loss, 4) for loss in losses]


def _measure_together(
    base: ResidentBase, cold: ColdRuns, one_task: TransferTask, other_task: TransferTask
) -> dict[str, Any]:
    """Both tasks' rows in one job with batches of both, until both are where they ended."""
    size, seed = cold.size, cold.seed
    one, other = cold.get(one_task), cold.get(other_task)
    data = replace(one.data, train=(*one.data.train, *other.data.train))
    both = replace(size, batch_size=2 * size.batch_size)
    job = build_job("both", data, both, seed, int(GIVEN_UP * size.steps), "constant")
    base.trainer.add(job, draw_initial(base, seed))
    while not job.done:
        step(base.trainer, job)
        if job.progress.step % size.every == 0:
            losses: list[float] = []
            for part in (one, other):
                job.data = replace(data, valid=part.data.valid)
                losses.append(look(base.trainer, job) / part.loss)
            if max(losses) <= REACHED:
                break
    base.trainer.remove("both")
    steps = job.progress.step
    return {
        "form": "spatial",
        "seed": seed,
        "donor": one_task.name,
        "target": other_task.name,
        "related": one_task.family == other_task.family,
        # a step of both is the work of a step of each
        "share": round(2 * steps / (one.steps + other.steps), 4),
        "steps": steps,
        "cold_steps": one.steps + other.steps,
    }


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
