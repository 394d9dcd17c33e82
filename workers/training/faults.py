"""Who caused a failure: the owner's input, or the market."""

from __future__ import annotations

import os

import torch


class TrainingFault(Exception):
    """A job cannot go on; the text is one sentence for its owner, with what to do."""


class UserFault(TrainingFault):
    """The job's data or settings are the cause: another node would fail as well."""


class PromptTooLong(UserFault):
    """A prompt that the model cannot read whole."""


class SchemaFault(UserFault):
    """A schema that an answer cannot follow."""


class SystemFault(TrainingFault):
    """The node is the cause: the same job may well run elsewhere."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether the device had no room; PyTorch says it in another way on each kind of device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def is_device_lost(error: Exception) -> bool:
    """Whether the device itself failed: after such an error every further call fails as well."""
    return isinstance(error, torch.AcceleratorError)


def refuse_row_too_big(tokens: int) -> SystemFault:
    """One row is more than the device holds."""
    return SystemFault(
        f"The node ran out of memory on a single row of {tokens} tokens. Train on a node with "
        "more memory, or lower the sequence length."
    )


def refuse_adapter(needed_bytes: float, *, free: float) -> SystemFault:
    """There is no memory for an adapter."""
    return SystemFault(
        f"The node ran out of memory for this adapter: it needs {needed_bytes / 1e9:.3f} GB and "
        f"{free / 1e9:.3f} GB are free. Use a lower rank, or a node with more memory."
    )


def measure_free_bytes(device: torch.device) -> float:
    """Bytes of the device's memory that nobody has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
