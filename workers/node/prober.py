"""Answering probes: fetch the adapters, have the runtime measure, tell the market.

A probe is an extra: whatever goes wrong with one is logged, and the market goes on without it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from workers.node.blob_cache import BlobCache, DiskFullError
from workers.node.market_client import MarketClient, MarketError, Patience
from workers.protocol.messages import PATH_PROBE_RESULT
from workers.protocol.probes import ProbeResult, ProbeSpec
from workers.training.faults import TrainingFault

log = logging.getLogger(__name__)

#: Probes remembered: a plan may come twice.
_KNOWN_MAX = 1000
_PATIENCE = Patience(total_s=3.0)


class ProbingRuntime(Protocol):
    def probe(self, probe: ProbeSpec, paths: Mapping[str, Path]) -> ProbeResult: ...


class Prober:
    """``take`` is called on the node's thread; the rest happens on one of its own."""

    def __init__(self, *, runtime: ProbingRuntime, cache: BlobCache, client: MarketClient) -> None:
        self._runtime = runtime
        self._cache = cache
        self._client = client
        self._known: dict[str, None] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="probe")

    def take(self, probe: ProbeSpec) -> None:
        """Answer a probe that is new and not over."""
        if probe.token in self._known or self._client.market_time() >= probe.expires_at:
            return
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[probe.token] = None
        self._pool.submit(self._answer, probe)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _answer(self, probe: ProbeSpec) -> None:
        try:
            with contextlib.ExitStack() as stack:
                paths: dict[str, Path] = {}
                for adapter in probe.adapters:
                    # One that is withdrawn or too large meanwhile must not cost the others.
                    with contextlib.suppress(MarketError, DiskFullError):
                        paths[adapter.name] = stack.enter_context(self._cache.opened(adapter.blob))
                result = self._runtime.probe(probe, paths)
            self._client.send(PATH_PROBE_RESULT, result, patience=_PATIENCE)
        except (TrainingFault, MarketError) as error:
            log.warning("a probe was not answered: %s", error)
        # Nothing of a probe may end the node.
        except Exception:
            log.exception("a probe failed")
