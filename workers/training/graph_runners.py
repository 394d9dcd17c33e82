"""Recording a computation once and running it again on whatever its buffers hold then."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

#: Held while a device records, and while a base is measured beside a loop that might. A
#: device must not be waited for as a whole while one of its streams is being recorded, and
#: the process has one stream to record on.
RECORDING = threading.RLock()


class RecordingDeferredError(Exception):
    """Recording has to wait; nothing was tried, and nothing is wrong."""


class GraphRunner(Protocol):
    """Records actions that read and write fixed buffers only."""

    name: str

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        """What runs the action again; the action itself has then run at least once.

        Raises
        ------
        RecordingDeferredError
            Another thread is busy with the device; the action has not run.
        Exception
            Whatever keeps the action from being recorded. It may have run, in part too.
        """
        ...


class RepeatRunner:
    """Runs the action itself: the meaning of a recording, on any device."""

    name = "repeat"

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        action()
        return action


class CudaGraphRunner:
    """One launch instead of hundreds; all recordings share one pool of memory.

    Sharing is safe, as recordings run one at a time and leave their results in buffers
    that were made outside of the pool. Nothing in them is random: dropout is a hash, so no
    generator has to be registered. Optimizers step outside.

    Parameters
    ----------
    device : torch.device, optional
        Whose streams are used; by default the current one.
    """

    name = "cuda graphs"
    #: Runs before recording, in which libraries choose kernels and make workspaces.
    _WARM_UPS = 2

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._pool: Any = None
        #: Recordings still in use; a pool that is no longer used cannot be used again.
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        if not RECORDING.acquire(blocking=False):
            raise RecordingDeferredError
        try:
            with torch.cuda.device(self._device):
                return self._record(action)
        finally:
            RECORDING.release()

    def _record(self, action: Callable[[], None]) -> Callable[[], None]:
        if not self._alive:
            self._pool = torch.cuda.graph_pool_handle()
        before = torch.cuda.current_stream()
        try:
            aside = torch.cuda.Stream()
            aside.wait_stream(before)
            with torch.cuda.stream(aside):
                for _ in range(self._WARM_UPS):
                    action()
            before.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # other bases may be training on other threads meanwhile
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                action()
        finally:
            # a recording that breaks off leaves its own stream behind as the current one
            torch.cuda.set_stream(before)
        self._alive.add(graph)
        return graph.replay
