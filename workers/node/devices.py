"""Which device a node trains on. A GPU that cannot be used is said so, never listed as a CPU."""

from __future__ import annotations

import re
from pathlib import Path

from workers.node.credentials import NodeSettingsError
from workers.protocol.joining import LEAST_DRIVER

#: Where NVIDIA's driver says its version; there whether or not PyTorch can use it.
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER_VERSION = re.compile(r"(?:Kernel Module|NVRM version).*?(\d{3,})\.(\d+)")
_OR_CPU = "To list the CPU of this machine instead, pass --device cpu."


def choose_device(wanted: str | None) -> str:
    """The device to measure and list: the one asked for, or the best.

    Raises
    ------
    NodeSettingsError
        When a GPU is there, or asked for, that PyTorch cannot use; the text says why.
    """
    import torch

    if wanted is not None and not wanted.startswith("cuda"):
        return wanted
    if torch.cuda.is_available():
        chosen = wanted or "cuda"
        try:
            for name in chosen.split(","):
                torch.ones(1, device=name).item()
        # Whatever keeps it from adding two numbers keeps it from training.
        except Exception as error:
            raise NodeSettingsError(
                f"The GPU {chosen} does not work: {error}. {_OR_CPU}"
            ) from error
        return chosen
    problem = explain_unusable_gpu(
        driver=read_driver_version(),
        devices=[str(path) for path in sorted(Path("/dev").glob("nvidia[0-9]*"))],
        cuda=torch.version.cuda,
    )
    if problem is None and wanted is None:
        return "cpu"
    problem = problem or "This machine has no NVIDIA GPU that can be seen."
    raise NodeSettingsError(f"{problem} {_OR_CPU}")


def read_driver_version(path: Path = _DRIVER_FILE) -> int | None:
    """The major version of NVIDIA's driver; ``None`` without one."""
    try:
        found = _DRIVER_VERSION.search(path.read_text())
    except OSError:
        return None
    return int(found[1]) if found else 0


def explain_unusable_gpu(*, driver: int | None, devices: list[str], cuda: str | None) -> str | None:
    """Why PyTorch cannot use the GPU of this machine; ``None`` where there is none.

    Parameters
    ----------
    driver : int, optional
        Major version of NVIDIA's driver; 0 where it does not say.
    devices : list of str
        Device files of GPUs.
    cuda : str, optional
        Version of CUDA that PyTorch was built with; ``None`` for a build without.
    """
    if driver is None and not devices:
        return None
    if cuda is None:
        return (
            "This machine has an NVIDIA GPU, but the installed PyTorch is built without CUDA. "
            "Install the CUDA build of PyTorch."
        )
    if driver is None:
        return (
            f"This machine has an NVIDIA GPU ({', '.join(devices)}), but its driver is not loaded. "
            "Install NVIDIA's driver."
        )
    least = LEAST_DRIVER.get(int(cuda.split(".")[0]), max(LEAST_DRIVER.values()))
    if 0 < driver < least:
        return (
            f"This machine has an NVIDIA GPU, but its driver {driver} is too old: PyTorch with "
            f"CUDA {cuda} needs {least} or newer."
        )
    if not devices:
        return (
            "NVIDIA's driver is there, but no GPU can be seen from here. In a container, start it "
            "with --gpus all."
        )
    return (
        f"This machine has an NVIDIA GPU ({', '.join(devices)}), but PyTorch with CUDA {cuda} "
        "cannot use it. See what nvidia-smi says, and whether CUDA_VISIBLE_DEVICES hides it."
    )
