"""Who caused a failure: the owner's input, or the market."""

from __future__ import annotations

import torch


class TrainingFault(Exception):
    """A job cannot go on; the text is one sentence for its owner, with what to do."""


class UserFault(TrainingFault):
    """The job's data or settings are the cause: another node would fail as well."""


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
