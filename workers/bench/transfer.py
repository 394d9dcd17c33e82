"""``python -m workers.bench transfer [--quick] [--out FILE]``: does an adapter help other tasks?

Every task is trained from the base, then from every other task's adapter with its B as it
is and scaled by 0.5, from an adapter of the same task with other rows, and together with others;
each until it reaches the loss on held-out rows that the cold run ended with. Two scores that are
known before training are compared with what was found: the donor's loss on 16 rows of the target
less the base's, and the cosine of squared gradients. One JSON line per ordered pair and form, then
a summary in which the more frequent answer stands beside every accuracy. With ``--out`` the lines
are kept in a file; what is there already is not trained again, so a run that was broken off goes
on. ``python -m scheduler merging replay FILE`` says what the market would have made of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workers.bench.transfer_tasks import TASKS, TransferTask, write_task
from workers.models import BUNDLED_PREFIX, TINY
from workers.protocol.messages import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.runtime.resident import ResidentBase, load_resident
from workers.training.data import PreparedData, prepare_data
from workers.training.evaluation import EvaluationRun
from workers.training.fused_trainer import FusedTrainer, StepFailure
from workers.training.job import TrainingJob
from workers.training.objective import compute_example_losses
from workers.training.packing import PackShare, build_pack

Values = dict[str, torch.Tensor]
#: Form, seed, donor and target of a row.
RowName = tuple[str, int, str, str]

#: Forms of a start from a donor, and the factor of its B.
SCALES = {"temporal": 1.0, "temporal, B scaled": 0.5}
#: Rows of the target that a donor is probed on.
PROBE_ROWS = 16
#: A warm run has reached the cold one when its loss is at most this much above.
REACHED = 1.01
#: Rows of the same task that are no rows of the target come from another seed.
OTHER_ROWS = 1_000
#: A run that has not got there after so many cold runs is given up.
GIVEN_UP = 1.5
LEARNING_RATE = 1e-3
RANK = 8


@dataclass(frozen=True, slots=True)
class TransferSize:
    """How much is trained."""

    tasks: tuple[TransferTask, ...]
    seeds: int
    rows: int
    batch_size: int
    #: Steps of a cold run, and between looks at the held-out rows.
    steps: int
    every: int
    #: Pairs that are also trained together.
    spatial_pairs: int


QUICK = TransferSize(
    # two of each of two families
    tasks=tuple(TASKS[i] for i in (0, 1, 3, 4)),
    seeds=1,
    rows=64,
    batch_size=8,
    steps=24,
    every=3,
    spatial_pairs=2,
)
FULL = TransferSize(
    tasks=TASKS, seeds=3, rows=80, batch_size=4, steps=32, every=2, spatial_pairs=11
)


@dataclass(frozen=True, slots=True)
class ColdRun:
    """A task trained from the base."""

    task: TransferTask
    #: Its rows are drawn from this.
    seed: int
    data: PreparedData
    adapter: Values
    #: Loss on held-out rows at each look, the first before any step.
    losses: tuple[float, ...]
    #: The first step that reached the last loss.
    steps: int
    #: Loss of the base on the rows that donors are probed on.
    base_loss: float
    #: Mean squared gradients of the first batch.
    embedding: np.ndarray

    @property
    def loss(self) -> float:
        """On held-out rows after the last step."""
        return self.losses[-1]


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


def measure_transfer(
    size: TransferSize, *, known: Collection[RowName] = ()
) -> Iterator[dict[str, Any]]:
    """Train everything and yield a row for each pair and form as it is there.

    Parameters
    ----------
    known : collection of (form, seed, donor, target)
        What is not trained again.
    """
    ref = BaseModelRef(name=TINY, source=f"{BUNDLED_PREFIX}{TINY}")
    base = load_resident(ref, device=torch.device("cpu"), limit_gb=8.0, reproducible=True)
    # one thread: on a busy machine several wait for each other most of the time
    base.apply_threads()
    with tempfile.TemporaryDirectory() as folder:
        runs = [_ColdRuns(base, size, seed, Path(folder)) for seed in range(size.seeds)]
        # Related pairs first: a run that is broken off has told most of what there is to tell.
        for is_related in (True, False):
            for cold, target in product(runs, size.tasks):
                if is_related and ("probes", cold.seed, "", target.name) not in known:
                    yield _probe_donors(base, cold, target)
                for donor, form in product(_list_donors(size, target, is_related), SCALES):
                    if (form, cold.seed, donor.name, target.name) not in known:
                        yield _measure_donor(base, cold, donor, target, form)
        for cold, (one, other) in product(runs, _list_pairs(size)):
            if ("spatial", cold.seed, one.name, other.name) not in known:
                yield _measure_together(base, cold.get(one), cold.get(other), size, cold.seed)


def _list_donors(size: TransferSize, target: TransferTask, is_related: bool) -> list[TransferTask]:
    """Other tasks of the target's family and last itself with other rows; or all the rest."""
    if not is_related:
        return [task for task in size.tasks if task.family != target.family]
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


def summarize(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What the rows say together, by form."""
    for form in SCALES:
        rows = [row for row in found if row["form"] == form]
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
    yield {
        "summary": "spatial",
        "pairs": len(together),
        "saved_work": sum(share < 1.0 for share in together),
        "mean_share": round(float(np.mean(together)), 3),
    }


class _ColdRuns:
    """Tasks trained from the base, each when it is first asked for."""

    def __init__(self, base: ResidentBase, size: TransferSize, seed: int, folder: Path) -> None:
        self.size, self.seed = size, seed
        self._base, self._folder = base, folder
        self._known: dict[tuple[str, int], ColdRun] = {}

    def get(self, task: TransferTask, *, other_rows: bool = False) -> ColdRun:
        seed = self.seed + (OTHER_ROWS if other_rows else 0)
        if (task.name, seed) not in self._known:
            self._known[task.name, seed] = _train_cold(
                self._base, task, self.size, seed, self._folder
            )
        return self._known[task.name, seed]


def _train_cold(
    base: ResidentBase, task: TransferTask, size: TransferSize, seed: int, folder: Path
) -> ColdRun:
    path = folder / f"{task.name}.jsonl"
    write_task(task, path, rows=size.rows, seed=seed)
    data = prepare_data(
        tokenizer=base.tokenizer,
        data_path=path,
        validation_path=None,
        data_format=DataFormat.INSTRUCTION,
        skip_lines=(),
        sequence_length=128,
        validation_share=0.2,
        seed=seed,
    )
    embedding = _first_gradients(base, data, size, seed)
    trainer = base.trainer
    job = _job("cold", data, size, seed, size.steps)
    trainer.add(job, _initial(base, seed))
    base_loss = _probe(trainer, job)
    losses = [_held_out(trainer, job)]
    while not job.done:
        _step(trainer, job)
        if job.progress.step % size.every == 0:
            losses.append(_held_out(trainer, job))
    adapter = {name: values.clone() for name, values, _ in base.model.tensors("cold")}
    trainer.remove("cold")
    reached = next(i for i, loss in enumerate(losses) if loss <= REACHED * losses[-1])
    return ColdRun(
        task, seed, data, adapter, tuple(losses), reached * size.every, base_loss, embedding
    )


def _probe_donors(base: ResidentBase, cold: _ColdRuns, task: TransferTask) -> dict[str, Any]:
    """Losses of all other tasks' adapters, their B by half, on the rows of a probe."""
    size, target = cold.size, cold.get(task)
    losses: dict[str, float] = {}
    for donor in size.tasks:
        if donor is not task:
            job = _job("warm", target.data, size, cold.seed, size.steps)
            base.trainer.add(job, _scale(cold.get(donor).adapter, 0.5))
            losses[donor.name] = round(_probe(base.trainer, job), 4)
            base.trainer.remove("warm")
    return {
        "form": "probes",
        "seed": cold.seed,
        "donor": "",
        "target": task.name,
        "base_loss": round(target.base_loss, 4),
        "losses": losses,
    }


def _scale(adapter: Values, factor: float) -> Values:
    """A copy of an adapter with its B scaled."""
    return {
        name: tensor * factor if name.endswith(".lora_B") else tensor.clone()
        for name, tensor in adapter.items()
    }


def _measure_donor(
    base: ResidentBase, cold: _ColdRuns, donor_task: TransferTask, task: TransferTask, form: str
) -> dict[str, Any]:
    size, seed = cold.size, cold.seed
    target = cold.get(task)
    donor = cold.get(donor_task, other_rows=donor_task is task)
    job = _job("warm", target.data, size, seed, int(GIVEN_UP * size.steps))
    base.trainer.add(job, _scale(donor.adapter, SCALES[form]))
    probe = _probe(base.trainer, job)
    losses = _losses_to_target(base.trainer, job, target, size)
    base.trainer.remove("warm")
    steps = job.progress.step
    return {
        "form": form,
        "seed": seed,
        "donor": donor_task.name,
        "target": task.name,
        "related": donor_task.family == task.family,
        "same_task": donor_task is task,
        "share": round(steps / target.steps, 4),
        "steps": steps,
        "cold_steps": target.steps,
        "base_loss": round(target.base_loss, 4),
        "probe": round(probe - target.base_loss, 4),
        "cosine": round(_cosine(donor.embedding, target.embedding), 4),
        "donor_before": round(donor.losses[0], 4),
        "donor_after": round(donor.loss, 4),
        "every": size.every,
        "cold_losses": [round(loss, 4) for loss in target.losses],
        "losses": [round(loss, 4) for loss in losses],
    }


def _measure_together(
    base: ResidentBase, one: ColdRun, other: ColdRun, size: TransferSize, seed: int
) -> dict[str, Any]:
    """Both tasks' rows in one job with batches of both, until both are where they ended."""
    data = replace(one.data, train=(*one.data.train, *other.data.train))
    both = replace(size, batch_size=2 * size.batch_size)
    job = _job("both", data, both, seed, int(GIVEN_UP * size.steps))
    base.trainer.add(job, _initial(base, seed))
    while not job.done:
        _step(base.trainer, job)
        if job.progress.step % size.every == 0:
            losses: list[float] = []
            for cold in (one, other):
                job.data = replace(data, valid=cold.data.valid)
                losses.append(_held_out(base.trainer, job) / cold.loss)
            if max(losses) <= REACHED:
                break
    base.trainer.remove("both")
    steps = job.progress.step
    return {
        "form": "spatial",
        "seed": seed,
        "donor": one.task.name,
        "target": other.task.name,
        "related": one.task.family == other.task.family,
        # a step of both is the work of a step of each
        "share": round(2 * steps / (one.steps + other.steps), 4),
        "steps": steps,
        "cold_steps": one.steps + other.steps,
    }


def _losses_to_target(
    trainer: FusedTrainer, job: TrainingJob, target: ColdRun, size: TransferSize
) -> list[float]:
    """Held-out losses at each look, up to where the cold run ended or until it is given up."""
    losses = [_held_out(trainer, job)]
    while losses[-1] > REACHED * target.loss and not job.done:
        _step(trainer, job)
        if job.progress.step % size.every == 0:
            losses.append(_held_out(trainer, job))
    return losses


def _job(name: str, data: PreparedData, size: TransferSize, seed: int, steps: int) -> TrainingJob:
    per_epoch = -(-len(data.train) // size.batch_size)
    spec = JobSpec(
        job_id=name,
        base_model=BaseModelRef(name=TINY, source=f"{BUNDLED_PREFIX}{TINY}"),
        data_format=DataFormat.INSTRUCTION,
        dataset=BlobRef(url="", sha256="", bytes=0),
        adapter=AdapterSpec(rank=RANK, alpha=2.0 * RANK),
        training=TrainingSpec(
            epochs=max(1, -(-steps // per_epoch)),
            batch_size=size.batch_size,
            learning_rate=LEARNING_RATE,
            schedule="constant",
            warmup_share=0.0,
            seed=seed,
        ),
    )
    return TrainingJob(spec, data)


def _initial(base: ResidentBase, seed: int) -> Values:
    return base.model.draw_initial_values(AdapterSpec(rank=RANK, alpha=2.0 * RANK), seed=seed)


def _step(trainer: FusedTrainer, job: TrainingJob) -> None:
    """One optimizer step of a job that is alone in the loop."""
    before = job.progress.step
    while job.progress.step == before:
        for result in trainer.round():
            if isinstance(result, StepFailure):
                raise result.fault


def _held_out(trainer: FusedTrainer, job: TrainingJob) -> float:
    run = EvaluationRun(job, token_budget=trainer.token_budget)
    while (found := run.run_pack(trainer.model, pad_to=trainer.pad_to)) is None:
        pass
    return found.loss


def _probe(trainer: FusedTrainer, job: TrainingJob) -> float:
    """Loss on the first rows of the job, before it has seen them."""
    data = job.data
    job.data = replace(data, valid=data.train[:PROBE_ROWS])
    try:
        return _held_out(trainer, job)
    finally:
        job.data = data


def _first_gradients(
    base: ResidentBase, data: PreparedData, size: TransferSize, seed: int
) -> np.ndarray:
    """Squared gradients of the adapter's matrices on the first batch, layer by layer."""
    rows = range(size.batch_size)
    examples = tuple(data.train[row] for row in rows)
    job = _job("profile", data, size, seed, 1)
    base.model.attach("profile", job.spec.adapter, _initial(base, 0))
    pack = build_pack([PackShare("profile", examples, 0, 0)], device=base.model.device)
    with base.model.streaming(pack):
        losses = compute_example_losses(base.model, pack, [job], [rows])
        losses[0].sum().backward()
    squares = [
        grad.detach().double().square().flatten().numpy().copy()
        for _, _, grad in base.model.tensors("profile")
        if grad is not None
    ]
    base.model.detach("profile")
    return np.concatenate(squares)


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
