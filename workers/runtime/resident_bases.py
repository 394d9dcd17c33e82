"""The base models that a node keeps in memory: loaded when asked for, dropped when unused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from workers.protocol.job_spec import BaseModelRef
from workers.runtime.gang_processes import ProcessGang
from workers.runtime.resident import ResidentBase, load_resident
from workers.training.faults import SystemFault


class ResidentBases:
    """The resident bases of one device, or of a group.

    Parameters
    ----------
    devices : sequence of torch.device
        A group's have the blocks of each base in parts.
    limit_gb : float
        Of all of them.
    gang_devices : sequence of str
        Further devices that share the batches of soft prompts; each loads every base.
    is_in_use : callable
        Whether a base has jobs or answers; others make room for one that is asked for.
    """

    def __init__(
        self,
        *,
        devices: Sequence[torch.device],
        limit_gb: float,
        gang_devices: Sequence[str],
        reproducible: bool,
        is_in_use: Callable[[BaseModelRef], bool],
    ) -> None:
        self.devices = tuple(devices)
        self.limit_gb = limit_gb
        self.gang_devices = tuple(gang_devices)
        self.reproducible = reproducible
        self._is_in_use = is_in_use
        self._loaded: dict[BaseModelRef, ResidentBase] = {}
        self._lock = threading.Lock()

    def get(self, ref: BaseModelRef) -> ResidentBase:
        """The base model, loaded if it is not there yet.

        Raises
        ------
        UserFault, SystemFault
            As ``load_resident``.
        """
        with self._lock:
            if ref not in self._loaded:
                self._loaded[ref] = self._load(ref)
            return self._loaded[ref]

    def list(self) -> list[ResidentBase]:
        """All of them, in the order in which they were loaded."""
        return list(self._loaded.values())

    def drop_adapters(self) -> None:
        """Give back the adapters that no answer uses."""
        for resident in self.list():
            resident.adapters.drop_unused()

    def close(self) -> None:
        """End the processes of their gangs."""
        for resident in self._loaded.values():
            _close_gang(resident)

    def _load(self, ref: BaseModelRef) -> ResidentBase:
        first, *others = self.devices
        if others:
            self._clear_group(ref)
        resident = load_resident(
            ref,
            device=first,
            others=others,
            limit_gb=self.limit_gb,
            reproducible=self.reproducible,
        )
        # bases without jobs make room for one that is asked for
        used = resident.plan.base_gb
        for other in list(self._loaded):
            used += self._loaded[other].plan.base_gb
            if used > self.limit_gb and not self._is_in_use(other):
                unused = self._loaded.pop(other)
                used -= unused.plan.base_gb
                _close_gang(unused)
        model = resident.model
        if self.gang_devices and not others and model.is_packed and not model.shape.encoder:
            resident.trainer.gang = ProcessGang(
                ref,
                devices=self.gang_devices,
                limit_gb=self.limit_gb,
                pad_to=resident.trainer.pad_to,
                reproducible=self.reproducible,
            )
        return resident

    def _clear_group(self, ref: BaseModelRef) -> None:
        """Have no other base on a group: each is cut as if it had the devices to itself."""
        for other in list(self._loaded):
            if self._is_in_use(other):
                raise SystemFault(
                    f"This node is a group of devices with {other.name!r}, which is in use. Train "
                    f"{ref.name!r} on another node."
                )
            del self._loaded[other]


def _close_gang(resident: ResidentBase) -> None:
    if resident.trainer.gang is not None:
        resident.trainer.gang.close()
