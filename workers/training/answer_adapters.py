"""Adapters that answer questions: kept between answers, the longest unused leaves first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch

from workers.protocol.job_bytes import count_answer_adapter_bytes
from workers.protocol.pass_bytes import DeviceProfile
from workers.protocol.probes import ProbeAdapter
from workers.training.faults import SystemFault
from workers.training.packed_model import PackedModel

#: An adapter's tensors, in the engine's layout.
Values = Mapping[str, torch.Tensor]


class AnswerAdapters:
    """Those of one base. The training loop's thread owns it.

    Parameters
    ----------
    limit_bytes : float
        What all of them may take together.
    """

    def __init__(self, model: PackedModel, *, limit_bytes: float) -> None:
        self._model = model
        self.limit_bytes = limit_bytes
        self._profile = DeviceProfile(model.device.type, model.dtype.itemsize)
        #: Bytes of each, the one that was used last at the end.
        self._sizes: dict[str, float] = {}
        #: Answers under way by adapter.
        self._uses: Counter[str] = Counter()

    @property
    def held_bytes(self) -> float:
        return sum(self._sizes.values())

    def holds(self, adapter: ProbeAdapter) -> bool:
        """Whether its values need not be read; on any thread, and true for the moment only."""
        return _name(adapter) in self._sizes

    def take(self, adapter: ProbeAdapter, load: Callable[[], Values]) -> str:
        """The name under which it is attached, until ``release``.

        Raises
        ------
        SystemFault
            There is no room for it beside those in use, or as ``PackedModel.attach``.
        """
        name = _name(adapter)
        size = self._sizes.pop(name, None)
        if size is None:
            size = count_answer_adapter_bytes(self._model.shape, self._profile, adapter.spec)
            while self.held_bytes + size > self.limit_bytes and self._drop_one():
                pass
            if self.held_bytes + size > self.limit_bytes:
                raise SystemFault(
                    f"This adapter takes {size / 1e9:.3f} GB, and the node has "
                    f"{max(0.0, self.limit_bytes - self.held_bytes) / 1e9:.3f} GB left for those "
                    "that answer. Ask again later."
                )
            self._model.attach(name, adapter.spec, dict(load()), answers=True)
        self._sizes[name] = size
        self._uses[name] += 1
        return name

    def release(self, name: str) -> None:
        """Count one answer less; the adapter stays while there is room."""
        self._uses[name] -= 1

    def drop_unused(self) -> bool:
        """Give back what no answer uses; whether that was anything."""
        dropped = self._drop_one()
        while self._drop_one():
            pass
        return dropped

    def _drop_one(self) -> bool:
        name = next((name for name in self._sizes if not self._uses[name]), None)
        if name is None:
            return False
        self._model.detach(name)
        del self._sizes[name], self._uses[name]
        return True


def _name(adapter: ProbeAdapter) -> str:
    """By its content: an adapter may be trained on under its name."""
    return repr((adapter.name, adapter.blob.sha256, adapter.spec, adapter.scale))
