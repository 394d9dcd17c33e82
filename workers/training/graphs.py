"""Recording a computation once and running it again on whatever its buffers hold then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch


class GraphRunner(Protocol):
    """Records actions that read and write fixed buffers only."""

    name: str

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        """What runs the action again; the action itself has then run at least once.

        Raises
        ------
        Exception
            Whatever keeps the action from being recorded.
        """
        ...


class Repeat:
    """Runs the action itself: the meaning of a recording, on any device."""

    name = "repeat"

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        action()
        return action


class CudaGraphs:
    """One launch instead of hundreds; all recordings share one pool of memory.

    Sharing is safe, as recordings run one at a time and leave their results in buffers
    that were made outside of the pool.
    """

    name = "cuda graphs"
    #: Runs before recording, in which libraries choose kernels and make workspaces.
    _WARM_UPS = 2

    def __init__(self) -> None:
        self._pool: Any = None

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(self._WARM_UPS):
                action()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # other bases may be training on other threads meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            action()
        return graph.replay
