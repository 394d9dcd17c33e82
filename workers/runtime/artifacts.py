"""What the owner of a finished job gets: the adapter, its metrics and its card."""

from __future__ import annotations

import csv
import io
import platform
import shutil
from dataclasses import astuple, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from workers.protocol.job_spec import AdapterKind
from workers.runtime.running_job import MetricsRow, RunningJob, find_row_outliers
from workers.training.adapter_export import export_adapter
from workers.training.checkpoint import write_atomically
from workers.training.job import TrainingJob

_PACKAGES = ("finetender", "transformers", "peft", "safetensors")


def write_artifacts(running: RunningJob) -> Path:
    """Write everything into the job's ``adapter`` folder; an older one goes when all is there.

    Raises
    ------
    OSError
        Such as a full disk. An older adapter is then as it was, and nothing half done is left.
    """
    directory = running.directory / "adapter"
    fresh = running.directory / "adapter.new"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        export_adapter(
            model=running.resident.model,
            tokenizer=running.resident.tokenizer,
            job=running.job,
            directory=fresh,
        )
        write_atomically(fresh / "metrics.csv", format_metrics_csv(running.metrics).encode())
        write_atomically(fresh / "README.md", write_model_card(running).encode())
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return directory


def format_metrics_csv(rows: list[MetricsRow]) -> str:
    """A line per optimizer step or evaluation; empty where nothing was measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in fields(MetricsRow)])
    for row in rows:
        writer.writerow(["" if value is None else value for value in astuple(row)])
    return out.getvalue()


def write_model_card(running: RunningJob) -> str:
    """The card that hubs show, with everything needed to train the same adapter again."""
    job = running.job
    spec, report, progress = job.spec, job.data.report, job.progress
    adapter, training = spec.adapter, spec.training
    soft = adapter.kind is AdapterKind.SOFT_PROMPT
    kind = f"soft prompt of {adapter.virtual_tokens} tokens" if soft else "LoRA"
    facts: list[tuple[str, object]] = [
        ("Base model", spec.base_model.source),
        ("Base revision", spec.base_model.revision or "not pinned"),
        ("Adapter", kind),
        ("Data SHA-256", report.sha256),
        ("Rows trained on", report.train_rows),
        ("Rows held out", report.valid_rows),
        ("Tokens trained", progress.trained_tokens),
        ("Optimizer steps", progress.step),
        (
            "First and last training loss",
            _pair(progress.first_train_loss, progress.last_train_loss),
        ),
        (
            "Validation loss before and after",
            _pair(progress.valid_loss_before, progress.valid_loss_after),
        ),
    ]
    accuracies = [row.valid_accuracy for row in running.metrics if row.valid_accuracy is not None]
    if accuracies:
        facts.append(("Validation accuracy before and after", _pair(accuracies[0], accuracies[-1])))
    if not soft:
        model = running.resident.model
        targets = [*model.name_targets(adapter), *model.list_experts(adapter)]
        facts += [
            ("Rank", adapter.rank),
            ("Alpha", adapter.alpha),
            ("Scaled by", "alpha / sqrt(rank) (rsLoRA)" if adapter.rslora else "alpha / rank"),
            ("Magnitudes apart (DoRA)", "yes" if adapter.dora else "no"),
            ("Dropout", adapter.dropout),
            ("Target modules", ", ".join(targets)),
        ]
    facts += [
        ("Epochs", training.epochs),
        ("Batch size", training.batch_size),
        ("Learning rate", training.learning_rate),
        ("Schedule", f"{training.schedule}, warm-up {training.warmup_share:.0%} of the steps"),
        ("Weight decay", training.weight_decay),
        ("Gradient clipping", training.max_grad_norm or "off"),
        ("Sequence length", training.sequence_length),
        ("Seed", training.seed),
        ("Early stopping", _describe_stopping(running)),
        ("Compute type", str(running.resident.model.dtype).removeprefix("torch.")),
        ("Versions", _versions()),
    ]
    if training.neftune_alpha:
        facts.append(("NEFTune alpha", training.neftune_alpha))
    if job.data.kind == "pairs":
        facts.append((f"{training.preference_loss.upper()} beta", training.dpo_beta))
    if job.data.labels:
        facts.append(("Labels, by number", ", ".join(job.data.labels)))
    front = f"---\nbase_model: {spec.base_model.source}\nlibrary_name: peft\n---\n\n"
    table = "".join(f"| {name} | {value} |\n" for name, value in facts)
    return front + f"# {spec.job_id}\n\n| | |\n|--|--|\n{table}" + _notes(job)


def _notes(job: TrainingJob) -> str:
    lines = [f"- {sentence}" for sentence in job.data.report.sentences()]
    outliers = find_row_outliers(job)
    if outliers:
        rows = ", ".join(f"line {outlier.line} ({outlier.loss:.3f})" for outlier in outliers)
        lines.append(f"- Rows with an unusually high loss at the end: {rows}.")
    return "\n## Data\n\n" + "\n".join(lines) + "\n"


def _describe_stopping(running: RunningJob) -> str:
    patience, progress = running.job.spec.training.early_stopping, running.job.progress
    if not patience:
        return "off"
    ended = "ended before its last step" if running.stopped_early else "ran to its last step"
    return f"after {patience} evaluations; {ended}; weights of step {progress.best_step}"


def _pair(first: float | None, last: float | None) -> str:
    shown = ["not measured" if value is None else f"{value:.4f}" for value in (first, last)]
    return " and ".join(shown)


def _versions() -> str:
    # Torch names its build (CPU or which CUDA) itself; its package's version may not.
    found = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
