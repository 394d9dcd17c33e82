"""An adapter as its owner gets it: a node's numbers, and beside them files that the market writes.

Names in the configuration, the tokenizer, the chat template and the card reach programs that run
code by them. So they come from the zone's base model and the job's own rows, never from a node.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO, Any

from marketplace.common.errors import UserError
from marketplace.fleet.selectors import build_base_model_ref, find_zone_tokenizer, get_model_shape
from marketplace.fleet.text_encoder import load_text_encoder
from marketplace.jobs.held_out import list_labels
from marketplace.jobs.models import Checkpoint, Job
from marketplace.jobs.selectors import load_metric_series
from marketplace.jobs.serving_lines import build_vllm_line
from marketplace.jobs.spooling import CHUNK_BYTES, SpooledFile
from workers.protocol.adapter_check import check_tensors
from workers.protocol.adapter_files import (
    CONFIG_NAME,
    build_peft_config,
    name_base,
    write_adapter_zip,
)
from workers.protocol.job_bytes import find_adapted
from workers.protocol.job_spec import AdapterKind, BaseModelRef, DataFormat
from workers.protocol.safetensors_header import TensorEntry, read_header, write_header
from workers.protocol.weight_sketch import (
    lay_out_peft,
    list_peft_tensors,
    read_checkpoint_weights,
)

_CONVERSATIONS = (DataFormat.CHAT, DataFormat.INSTRUCTION, DataFormat.PREFERENCE)
_METRICS = ("step", "epoch", "train_loss", "valid_loss", "learning_rate", "grad_norm")


@contextmanager
def spool_checkpoint_weights(checkpoint: Checkpoint) -> Iterator[SpooledFile]:
    """Write the adapter in a checkpoint as the safetensors file of a finished one.

    Names and shapes are compared first: no more is read than an adapter has, a tensor at a time.

    Raises
    ------
    AdapterError, WeightsUnreadable
        It does not hold the adapter that its job asks for.
    FileNotFoundError
    """
    job = checkpoint.job
    entries: list[TensorEntry] = []
    with (
        checkpoint.file.open("rb") as stored,
        tempfile.TemporaryFile() as values,
        tempfile.TemporaryFile() as made,
    ):
        listed = list_peft_tensors(stored, size=checkpoint.bytes)
        check_tensors(listed, shape=get_model_shape(job.zone), adapter=job.terms.adapter)
        stored.seek(0)
        for name, tensor in lay_out_peft(read_checkpoint_weights(stored, size=checkpoint.bytes)):
            count = values.write(tensor.tobytes())
            entries.append(TensorEntry(name, "F32", tensor.shape, 0, count))
        size = made.write(write_header(entries)) + values.tell()
        values.seek(0)
        shutil.copyfileobj(values, made, CHUNK_BYTES)
        made.seek(0)
        yield SpooledFile(file=made, sha256="", bytes=size)


@contextmanager
def compose_adapter(
    job: Job, weights: SpooledFile, *, checkpoint: Checkpoint | None = None
) -> Iterator[SpooledFile]:
    """Write the zip of a finished adapter, or a checkpoint's, around weights that were checked.

    Raises
    ------
    UserError
        ``base_unreachable`` (503): the base model's tokenizer cannot be had now.
    """
    texts = _build_texts(job, checkpoint)
    with tempfile.TemporaryFile() as made:
        write_adapter_zip(made, texts=texts, weights=_copy_weights(weights))
        size = made.tell()
        made.seek(0)
        digest = hashlib.file_digest(made, "sha256").hexdigest()  # type: ignore[arg-type]
        made.seek(0)
        yield SpooledFile(file=made, sha256=digest, bytes=size)


def _build_texts(job: Job, checkpoint: Checkpoint | None) -> dict[str, bytes]:
    """All files of an adapter but its weights, by name."""
    try:
        tokenizer = read_tokenizer_texts(job)
    except UserError as error:
        raise UserError("base_unreachable", error.message, status=503) from error
    shape, adapter = get_model_shape(job.zone), job.terms.adapter
    is_lora = adapter.kind is AdapterKind.LORA
    adapted = find_adapted(shape, adapter.target_modules) if is_lora else ()
    config = build_peft_config(
        base_model=build_base_model_ref(job.zone),
        shape=shape,
        adapter=adapter,
        target_modules=[part.name for part in adapted if part.experts == 1],
        target_parameters=[part.name for part in adapted if part.experts > 1],
    )
    return {
        CONFIG_NAME: write_json(config),
        "README.md": _write_card(job, checkpoint).encode(),
        "metrics.csv": _write_metrics(job, checkpoint).encode(),
    } | tokenizer


def read_tokenizer_texts(job: Job) -> dict[str, bytes]:
    """The base model's tokenizer, with the chat templates that a job was trained with, by name.

    Raises
    ------
    UserError
        ``unknown_tokenizer``: it cannot be had.
    """
    files = find_zone_tokenizer(job.zone)
    config: dict[str, Any] = {}
    if files.config is not None:
        config = json.loads(files.config.read_bytes())
    # It names code in the base model's own repository.
    config.pop("auto_map", None)
    texts = {"tokenizer.json": files.tokenizer.read_bytes()}
    if files.chat_template is not None and files.tool_template is not None:
        # As a file, the second one would lie in a folder of its own.
        named = {"default": files.chat_template, "tool_use": files.tool_template}
        config["chat_template"] = [
            {"name": name, "template": path.read_text("utf-8")} for name, path in named.items()
        ]
    elif files.chat_template is not None:
        texts["chat_template.jinja"] = files.chat_template.read_bytes()
    elif "chat_template" not in config and job.dataset.format in _CONVERSATIONS:
        # Who uses the adapter has to write as it was trained.
        template = load_text_encoder(files).default_template
        texts["chat_template.jinja"] = template.encode()
    return texts | {"tokenizer_config.json": write_json(config)}


def write_json(value: object) -> bytes:
    return f"{json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)}\n".encode()


def _copy_weights(weights: SpooledFile) -> Iterator[bytes]:
    """The tensors in the order of their names, behind a header of the market's own."""
    file = weights.file
    file.seek(0)
    entries = read_header(file, size=weights.bytes)
    begin = file.tell()
    in_order = sorted(entries, key=lambda entry: entry.name)
    yield write_header(in_order)
    for entry in in_order:
        file.seek(begin + entry.start)
        yield from _read_exactly(file, entry.end - entry.start)


def _read_exactly(file: IO[bytes], left: int) -> Iterator[bytes]:
    while left and (chunk := file.read(min(left, CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk


def _write_metrics(job: Job, checkpoint: Checkpoint | None) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_METRICS)
    steps: dict[int, dict[str, float]] = {}
    # One that was validated, or begun again by the same node, has several points.
    for point in load_metric_series(job, limit=None):
        said = {name: getattr(point, name) for name in _METRICS}
        steps.setdefault(point.step, {}).update({k: v for k, v in said.items() if v is not None})
    rows = [row for row in steps.values() if checkpoint is None or row["step"] <= checkpoint.step]
    writer.writerows([row.get(name) for name in _METRICS] for row in rows)
    return out.getvalue()


def _write_card(job: Job, checkpoint: Checkpoint | None) -> str:
    """The card that hubs show, with everything needed to train the same adapter again."""
    base, terms, at = build_base_model_ref(job.zone), job.terms, checkpoint or job
    facts: dict[str, object] = {
        "Base model": name_base(base.source),
        "Base revision": base.revision or "not pinned",
        "Data SHA-256": job.dataset.sha256,
        "Optimizer steps": at.step,
        "First and last training loss": _format_pair(job.first_train_loss, at.train_loss),
        "Validation loss before and after": _format_pair(job.valid_loss_before, at.valid_loss),
    }
    # A node stores the adapter before it says how many tokens its last slice trained on.
    if checkpoint is None and job.trained_tokens:
        facts["Tokens trained"] = job.trained_tokens
    if job.dataset.format == DataFormat.CLASSIFICATION:
        facts["Labels, by number"] = ", ".join(list_labels(job.dataset))
    settings = asdict(terms.adapter) | asdict(terms.training)
    facts |= {name.replace("_", " ").capitalize(): value for name, value in settings.items()}
    front = f"---\nbase_model: {name_base(base.source)}\nlibrary_name: peft\n---\n\n"
    table = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    return front + f"# {job.pk}\n\n| | |\n|--|--|\n{table}" + _write_use(job, base)


def _write_use(job: Job, base: BaseModelRef) -> str:
    """How programs of others are told of the adapter, where they take such ones."""
    adapter, name = job.terms.adapter, name_base(base.source)
    lines = ["", "## Use", "", f"`AutoPeftModel` and others load it where `{name}` is found."]
    if base.source.startswith("bundled:"):
        fetch = f"finetender api zones_base zone_name={job.zone.name} --output base.tar"
        lines[-1] += " The market gives that folder:"
        lines += ["", f"    {fetch} && tar xf base.tar", ""]
    vllm = build_vllm_line(job, folder=".")
    if vllm is not None:
        lines += ["", f"    {vllm}", ""]
    if adapter.kind is AdapterKind.LORA and job.dataset.format != DataFormat.CLASSIFICATION:
        gguf = f"{job.pk}-q8_0.gguf"
        lines += [
            f"Ollama takes the export `{gguf}` by a `Modelfile` beside it: `FROM ./{gguf}`.",
        ]
    return "\n".join([*lines, ""])


def _format_pair(before: float | None, after: float | None) -> str:
    return " and ".join("unknown" if value is None else f"{value:.4f}" for value in (before, after))
