"""What a warm base, and each of a few adapters, loses on some rows: a matter of milliseconds.

It runs on the training loop's thread, one adapter at a time between two steps of the jobs there.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from workers.protocol.messages import (
    AdapterSpec,
    BlobRef,
    JobSpec,
    ProbeLoss,
    ProbeResult,
    ProbeSpec,
    TrainingSpec,
)
from workers.runtime.resident import ResidentBase
from workers.training.data import PreparedData, prepare_data
from workers.training.evaluation import EvaluationRun
from workers.training.faults import TrainingFault
from workers.training.job import TrainingJob
from workers.training.start_values import load_start_values

log = logging.getLogger(__name__)

#: Runs something between two steps on the loop's thread and waits for it.
Call = Callable[[Callable[[], float]], float]


def answer_probe(
    probe: ProbeSpec,
    *,
    resident: ResidentBase,
    paths: Mapping[str, Path],
    call: Call,
    is_over: Callable[[], bool],
) -> ProbeResult:
    """Measure the base's loss on the probe's rows, and each adapter's.

    Parameters
    ----------
    paths : mapping of str to Path
        Zips of the adapters by name; one that is not there is not measured.
    call : callable
        Runs a measurement on the loop's thread.
    is_over : callable
        Whether the time for the answer has passed: what is left is not measured.

    Returns
    -------
    ProbeResult
        Losses are means over the trained tokens, in nats.
    """
    began = time.monotonic()
    try:
        data = _read_rows(probe, resident)
    except TrainingFault as fault:
        log.info("the rows of a probe cannot be used: %s", fault)
        return ProbeResult(probe.token, None)
    base = call(lambda: _measure(resident, probe, data, AdapterSpec(rank=1, alpha=1.0), None, 1.0))
    losses: list[ProbeLoss] = []
    for adapter in probe.adapters:
        loss: float | None = None
        path = paths.get(adapter.name)
        if path is not None and not is_over():
            try:
                loss = call(
                    lambda spec=adapter.spec, path=path, scale=adapter.scale: _measure(
                        resident, probe, data, spec, path, scale
                    )
                )
            except TrainingFault as fault:
                log.info("adapter %s cannot be probed: %s", adapter.name, fault)
        losses.append(ProbeLoss(adapter.name, loss if _is_finite(loss) else None))
    seconds = round(time.monotonic() - began, 3)
    return ProbeResult(probe.token, base if _is_finite(base) else None, tuple(losses), seconds)


def _read_rows(probe: ProbeSpec, resident: ResidentBase) -> PreparedData:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("".join(f"{row}\n" for row in probe.rows), encoding="utf-8")
        return prepare_data(
            tokenizer=resident.tokenizer,
            data_path=path,
            validation_path=None,
            data_format=probe.data_format,
            skip_lines=(),
            sequence_length=min(probe.sequence_length, resident.model.context_length),
            validation_share=0.0,
            seed=0,
        )


@torch.no_grad()
def _measure(
    resident: ResidentBase,
    probe: ProbeSpec,
    data: PreparedData,
    adapter: AdapterSpec,
    path: Path | None,
    scale: float,
) -> float:
    """Mean loss on the rows with one adapter, or with a fresh one, which is the base's."""
    values = resident.model.draw_initial_values(adapter, seed=0)
    if path is not None:
        values = load_start_values(path, fresh=values, scale=scale)
    spec = JobSpec(
        job_id=f"probe-{probe.token}",
        base_model=probe.base_model,
        data_format=probe.data_format,
        dataset=BlobRef(url="", sha256="", bytes=0),
        adapter=adapter,
        training=TrainingSpec(),
    )
    # Evaluations look at the held-out rows.
    job = TrainingJob(spec, PreparedData(data.train, data.train, data.kind, data.report))
    trainer = resident.trainer
    resident.apply_threads()
    resident.model.attach(job.job_id, adapter, values)
    try:
        run = EvaluationRun(job, token_budget=trainer.token_budget)
        while (found := run.run_pack(resident.model, pad_to=trainer.pad_to)) is None:
            pass
    finally:
        resident.model.detach(job.job_id)
    return found.loss


def _is_finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)
