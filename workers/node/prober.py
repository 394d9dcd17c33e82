"""Probes: fetch the adapters and have the runtime measure them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from workers.node.blob_cache import BlobCache, DiskFullError
from workers.node.market_client import MarketError
from workers.node.preparer import Runtime
from workers.protocol.errands import ErrandSpec
from workers.protocol.probes import ProbeResult, ProbeTask


class Prober:
    """An ``ErrandHandler``."""

    task_type = ProbeTask

    def __init__(self, *, runtime: Runtime, cache: BlobCache) -> None:
        self._runtime = runtime
        self._cache = cache

    def do(
        self, task: ProbeTask, errand: ErrandSpec, *, is_over: Callable[[], bool]
    ) -> ProbeResult:
        with contextlib.ExitStack() as stack:
            paths: dict[str, Path] = {}
            for adapter in task.adapters:
                # One that is withdrawn or too large meanwhile must not cost the others.
                with contextlib.suppress(MarketError, DiskFullError):
                    paths[adapter.name] = stack.enter_context(self._cache.opened(adapter.blob))
            return self._runtime.probe(task, paths, expires_at=errand.expires_at)
