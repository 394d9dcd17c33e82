"""A finished adapter as a directory that stock ``peft`` loads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from workers.training.architectures import Architecture
from workers.training.checkpoint import write_atomically
from workers.training.job import TrainingJob
from workers.training.packed_model import PackedModel


def export_adapter(
    *, model: PackedModel, tokenizer: Any, job: TrainingJob, directory: Path
) -> None:
    """Write ``adapter_config.json``, ``adapter_model.safetensors`` and the tokenizer.

    Raises
    ------
    OSError
        Such as a full disk.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        peft_name(name): _peft_layout(name, values) for name, values, _ in model.tensors(job.job_id)
    }
    config = peft_config(model=model, job=job)
    write_atomically(
        directory / "adapter_model.safetensors", save(tensors, metadata={"format": "pt"})
    )
    write_atomically(
        directory / "adapter_config.json",
        (json.dumps(config, indent=2, sort_keys=True) + "\n").encode(),
    )
    tokenizer.save_pretrained(directory)


def peft_name(name: str) -> str:
    """PEFT's name of ``<layer>.lora_A`` or ``<layer>.lora_B``."""
    return f"base_model.model.{name}.weight"


def peft_config(*, model: PackedModel, job: TrainingJob) -> dict[str, Any]:
    """What goes into ``adapter_config.json``."""
    spec = job.spec
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if model.architecture.encoder else "CAUSAL_LM",
        "base_model_name_or_path": spec.base_model.source,
        "revision": spec.base_model.revision,
        "r": spec.adapter.rank,
        "lora_alpha": spec.adapter.alpha,
        "lora_dropout": spec.adapter.dropout,
        "target_modules": target_modules(model.architecture, spec.adapter.target_modules),
        "fan_in_fan_out": model.model.config.model_type == "gpt2",
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
    }


def target_modules(architecture: Architecture, chosen: tuple[str, ...] | None) -> list[str]:
    """The endings PEFT matches modules by."""
    return sorted(chosen or architecture.target_modules)


def _peft_layout(name: str, values: torch.Tensor) -> torch.Tensor:
    """Ours keep both matrices with the rank first; PEFT's ``B`` is ``[O, R]``."""
    values = values.detach().to("cpu", torch.float32)
    return (values.T if re.search(r"\.lora_B$", name) else values).contiguous().clone()
