"""Counts what autograd keeps for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class SavedBytes:
    """A context in which saved tensors are counted, each storage once, weights never.

    It sees exactly the tensors that stay alive until the backward pass, on any device,
    so a plan made from it needs no trial and error.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = {p.untyped_storage()._cdata for p in model.parameters()}
        self._storages: dict[int, int] = {}
        self._hooks: Any = None

    def __enter__(self) -> SavedBytes:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    @property
    def total(self) -> int:
        return sum(self._storages.values())

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._weights:
            self._storages[storage._cdata] = storage.nbytes()
        return tensor
