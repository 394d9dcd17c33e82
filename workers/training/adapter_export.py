"""A finished adapter as a directory that stock ``peft`` loads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from workers.protocol.adapter_check import WEIGHTS_NAME
from workers.protocol.adapter_files import CONFIG_NAME, build_peft_config
from workers.protocol.job_spec import DataFormat
from workers.training.adapter_stack import MAGNITUDE
from workers.training.checkpoint import write_atomically
from workers.training.data import TokenizerEncoder
from workers.training.job import TrainingJob
from workers.training.packed_model import PROMPT, PackedModel

_CONVERSATIONS = (DataFormat.CHAT, DataFormat.INSTRUCTION, DataFormat.PREFERENCE)


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
        format_peft_name(name): to_peft_layout(name, values)
        for name, values, _ in model.tensors(job.job_id)
    }
    write_atomically(directory / WEIGHTS_NAME, save(tensors, metadata={"format": "pt"}))
    adapter = job.spec.adapter
    config = build_peft_config(
        base_model=job.spec.base_model,
        shape=model.shape,
        adapter=adapter,
        target_modules=model.name_targets(adapter.target_modules),
    )
    text = json.dumps(config, indent=2, sort_keys=True)
    write_atomically(directory / CONFIG_NAME, f"{text}\n".encode())
    save_tokenizer(tokenizer, data_format=job.spec.data_format, directory=directory)


def save_tokenizer(tokenizer: Any, *, data_format: DataFormat, directory: Path) -> None:
    """Write the base model's tokenizer, with the chat templates that a job was trained with."""
    if not tokenizer.chat_template and data_format in _CONVERSATIONS:
        # Who uses the adapter has to write as it was trained.
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = TokenizerEncoder(tokenizer).templates.default
    # several templates would be files in a folder of their own, which an adapter's zip has not
    has_several = isinstance(tokenizer.chat_template, dict)
    tokenizer.save_pretrained(directory, save_jinja_files=not has_several)


def format_peft_name(name: str) -> str:
    """PEFT's name of one of our tensors."""
    if name == PROMPT:
        return PROMPT
    if name.endswith(f".{MAGNITUDE}"):
        return f"base_model.model.{name.removesuffix(MAGNITUDE)}lora_magnitude_vector"
    if name.startswith("classifier."):
        return f"base_model.model.{name}"
    return f"base_model.model.{name}.weight"


def to_peft_layout(name: str, values: torch.Tensor) -> torch.Tensor:
    """Ours keep both matrices with the rank first; PEFT's ``B`` is ``[O, R]``."""
    values = values.detach().to("cpu", torch.float32)
    return (values.T if name.endswith(".lora_B") else values).contiguous().clone()
