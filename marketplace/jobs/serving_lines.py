"""The lines by which programs of others serve an adapter, for its card and its page."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from marketplace.jobs.models import Job
from workers.protocol.adapter_files import name_base
from workers.protocol.job_spec import AdapterKind, DataFormat

#: What ``vllm serve`` takes as ``--max-lora-rank``; an adapter of less fits.
_VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True, slots=True)
class ServingLine:
    """What one program is told to serve a job's adapter."""

    program: str
    text: str
    #: What has to be there before.
    needs: str


def build_vllm_line(job: Job, *, folder: str) -> str | None:
    """The command that serves an adapter's unpacked folder; ``None``: vLLM does not load it.

    vLLM loads LoRA, but neither DoRA nor soft prompts, and answers nothing from classifiers.
    """
    adapter = job.terms.adapter
    if not _writes_text(job) or adapter.dora:
        return None
    base = shlex.quote(name_base(job.zone.base_model_source))
    rank = next(rank for rank in _VLLM_RANKS if rank >= adapter.rank)
    return (
        f"vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules {job.pk}={folder}"
    )


def list_serving_lines(job: Job, *, is_mergeable: bool) -> list[ServingLine]:
    """How a finished job's files are served elsewhere; none where no program takes them.

    ``is_mergeable``: the adapter can be exported, merged into its base model.
    """
    lines = []
    if (vllm := build_vllm_line(job, folder=f"./{job.pk}")) is not None:
        lines.append(ServingLine("vLLM", vllm, f"The adapter, unpacked into the folder {job.pk}."))
    elif is_mergeable:
        merged = f"vllm serve ./{job.pk}-merged"
        lines.append(ServingLine("vLLM", merged, "The export with merged weights, unpacked."))
    if is_mergeable:
        gguf = f"{job.pk}-q8_0.gguf"
        ollama = f'echo "FROM ./{gguf}" > Modelfile\nollama create {job.pk} -f Modelfile'
        lines.append(ServingLine("Ollama", ollama, f"The export as GGUF, Q8_0: {gguf}."))
    return lines


def _writes_text(job: Job) -> bool:
    """Whether it is a LoRA of a model that writes."""
    is_lora = job.terms.adapter.kind is AdapterKind.LORA
    return is_lora and job.dataset.format != DataFormat.CLASSIFICATION
