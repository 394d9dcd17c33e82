"""What a CUDA graph does, on any device: a list of operations on fixed tensors.

Nothing of the Python that recorded it runs again, so whatever a step would read on the
host, or make anew in another place, shows as a wrong number or an error here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape:
    name = "tape"

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        with _Recording() as recording:
            action()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            with torch.no_grad():
                for function, args, kwargs, results in recording.operations:
                    found = tree_leaves(function(*args, **kwargs))
                    for kept, new in zip(results, found, strict=True):
                        if isinstance(kept, torch.Tensor) and kept.data_ptr() != new.data_ptr():
                            kept.copy_(new)

        return replay


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a recorded step reads a number on the host")
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, tree_leaves(results)))
        return results
