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
from workers.protocol.adapter_names import list_peft_names
from workers.protocol.job_spec import DataFormat
from workers.training.checkpoint import write_atomically
from workers.training.data import TokenizerEncoder
from workers.training.job import TrainingJob
from workers.training.packed_model import PackedModel

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
    values = {name: tensor for name, tensor, _ in model.tensors(job.job_id)}
    names = list_peft_names((name, tensor.ndim) for name, tensor in values.items())
    tensors = {names[name]: to_peft_layout(name, tensor) for name, tensor in values.items()}
    write_atomically(directory / WEIGHTS_NAME, save(tensors, metadata={"format": "pt"}))
    adapter = job.spec.adapter
    config = build_peft_config(
        base_model=job.spec.base_model,
        shape=model.shape,
        adapter=adapter,
        target_modules=model.name_targets(adapter),
        target_parameters=model.list_experts(adapter),
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


def to_peft_layout(name: str, values: torch.Tensor) -> torch.Tensor:
    """Ours keep both matrices with the rank first; PEFT's ``B`` is ``[O, R]``.

    Of experts, ours are ``[E, R, I]`` and ``[E, R, O]``, PEFT's ``[E * R, I]`` and ``[O, R * E]``.
    """
    values = values.detach().to("cpu", torch.float32)
    if values.ndim == 3:
        is_second = name.endswith(".lora_B")
        laid = values.permute(2, 1, 0).flatten(1) if is_second else values.flatten(0, 1)
        return laid.contiguous().clone()
    return (values.T if name.endswith(".lora_B") else values).contiguous().clone()
