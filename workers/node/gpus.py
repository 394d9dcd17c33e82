"""Which GPUs a machine has, and which cores are near each of them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from workers.node.credentials import NodeSettingsError
from workers.node.devices import explain_unusable_gpu, read_driver_version
from workers.protocol.joining import CUDA_MAJOR

_QUERY = ("nvidia-smi", "--query-gpu=uuid,name,pci.bus_id", "--format=csv,noheader")
_QUERY_LIMIT_S = 30.0
_PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Gpu:
    #: Names it wherever it is plugged in, and in ``CUDA_VISIBLE_DEVICES``.
    uuid: str
    model: str
    #: Such as ``00000000:3B:00.0``.
    bus_id: str


def list_gpus() -> list[Gpu]:
    """The machine's GPUs, as its driver counts them.

    Raises
    ------
    NodeSettingsError
        The driver cannot be asked; the text says why.
    """
    try:
        done = subprocess.run(
            _QUERY, capture_output=True, text=True, check=True, timeout=_QUERY_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        devices = [str(path) for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]
        why = explain_unusable_gpu(
            driver=read_driver_version(), devices=devices, cuda=f"{CUDA_MAJOR}.0"
        )
        raise NodeSettingsError(
            why or f"nvidia-smi does not say which GPUs there are: {error}."
        ) from error
    return parse_gpu_list(done.stdout)


def parse_gpu_list(text: str) -> list[Gpu]:
    """What ``nvidia-smi`` prints, one GPU a line."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    return [Gpu(*row) for row in rows if len(row) == 3 and row[0].startswith("GPU-")]


def read_near_cores(gpu: Gpu, *, pci: Path = _PCI) -> frozenset[int]:
    """The cores of the GPU's NUMA node; none where the system does not say."""
    domain, _, rest = gpu.bus_id.lower().partition(":")
    try:
        # The driver writes the domain with eight digits, the system with four.
        text = (pci / f"{domain[-4:]}:{rest}" / "local_cpulist").read_text()
        return parse_core_list(text)
    except (OSError, ValueError):
        return frozenset()


def parse_core_list(text: str) -> frozenset[int]:
    """Linux's way to write sets of cores, such as ``0-3,8``."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def share_cores(wanted: list[frozenset[int]]) -> list[tuple[int, ...]]:
    """Cores for each process: those near its GPU, shared evenly with others that are near them.

    Parameters
    ----------
    wanted : list of frozenset
        Cores near each GPU; empty: any core will do.

    Returns
    -------
    list of tuple
        Empty where there are fewer cores than processes: then the system decides.
    """
    usable = frozenset(os.sched_getaffinity(0))
    near = [(cores & usable) or usable for cores in wanted]
    shares: list[tuple[int, ...]] = []
    for index, cores in enumerate(near):
        alike = [place for place, others in enumerate(near) if others == cores]
        mine = sorted(cores)[alike.index(index) :: len(alike)]
        shares.append(tuple(mine))
    return shares if all(shares) else [() for _ in wanted]
