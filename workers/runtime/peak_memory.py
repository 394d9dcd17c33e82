"""The most memory a stretch of work took, as the operating system saw it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class MemoryGrowth:
    """Bytes by which this process grew at its largest; ``None`` where they are not counted."""

    peak_bytes: int | None = None


@contextlib.contextmanager
def measure_growth() -> Iterator[MemoryGrowth]:
    """Count pages, not tensors: what libraries and the allocator take is in it too.

    Linux keeps the largest resident size of a process and lets the process begin again
    (``proc(5)``, ``VmHWM`` and ``clear_refs``); elsewhere nothing is measured.
    """
    growth = MemoryGrowth()
    try:
        _CLEAR.write_text("5")
        before = psutil.Process().memory_info().rss
    except OSError:
        yield growth
        return
    yield growth
    peak = _high_water()
    if peak is not None:
        growth.peak_bytes = max(0, peak - before)


def _high_water() -> int | None:
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
