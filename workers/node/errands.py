"""Errands: side jobs beside the slices, each done once and answered in time.

An errand is an extra: what goes wrong with one is told to the market, and the node goes on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from workers.node.blob_cache import DiskFullError
from workers.node.market_client import MarketClient, MarketError, Patience, ShuttingDownError
from workers.protocol.errands import PATH_ERRAND_RESULT, ErrandResult, ErrandSpec
from workers.protocol.reports import Fault
from workers.protocol.wire import ProtocolError, from_json, to_json
from workers.training.faults import TrainingFault, UserFault

log = logging.getLogger(__name__)

#: Errands remembered: a plan may come twice.
_KNOWN_MAX = 1000
_REASON_CHARS = 300
_PATIENCE = Patience(total_s=10.0)


class ErrandHandler(Protocol):
    """What is special about one kind of errand."""

    #: The dataclass of ``ErrandSpec.task``.
    task_type: type[Any]

    def do(self, task: Any, errand: ErrandSpec, *, is_over: Callable[[], bool]) -> Any:
        """Give the result, or ``None`` where the market has the file that was asked for.

        Raises
        ------
        UserFault
            No node could do it.
        SystemFault, MarketError, DiskFullError, OSError
            This node could not.
        ShuttingDownError
            Its time is over.
        """
        ...


class ErrandRunner:
    """Does the errands of a node; each kind on a thread of its own, so that none waits for others.

    ``take`` is called on the node's thread.
    """

    def __init__(self, *, handlers: Mapping[str, ErrandHandler], client: MarketClient) -> None:
        self._handlers = handlers
        self._client = client
        self._known: dict[str, None] = {}
        self._closing = threading.Event()
        self._pools = {
            kind: ThreadPoolExecutor(1, thread_name_prefix=f"errand-{kind}") for kind in handlers
        }

    def take(self, value: Any) -> None:
        """Do an errand that is new and not over; one that is not understood is left out."""
        try:
            errand = from_json(ErrandSpec, value, ignores_unknown=True)
            handler = self._handlers.get(errand.kind)
            if handler is None:
                raise ProtocolError(f"{errand.kind!r} is no kind of errand")
            task = from_json(handler.task_type, errand.task, ignores_unknown=True)
        except ProtocolError as error:
            log.warning("an errand is not understood: %s", error)
            return
        if errand.token in self._known or self._client.market_time() >= errand.expires_at:
            return
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[errand.token] = None
        self._pools[errand.kind].submit(self._do, handler, task, errand)

    def close(self) -> None:
        self._closing.set()
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def _do(self, handler: ErrandHandler, task: Any, errand: ErrandSpec) -> None:
        try:
            found = handler.do(task, errand, is_over=lambda: self._is_over(errand))
        except ShuttingDownError:
            return
        except (TrainingFault, MarketError, DiskFullError, OSError) as error:
            log.warning("an errand (%s) is not done: %s", errand.kind, error)
            fault = Fault.USER if isinstance(error, UserFault) else Fault.SYSTEM
            self._send(errand, ErrandResult(reason=str(error)[:_REASON_CHARS], fault=fault))
        # Nothing of an errand may end the node.
        except Exception:
            log.exception("an errand (%s) failed", errand.kind)
            self._send(errand, ErrandResult(reason="The node failed.", fault=Fault.SYSTEM))
        else:
            if found is not None:
                self._send(errand, ErrandResult(found=to_json(found)))

    def _is_over(self, errand: ErrandSpec) -> bool:
        return self._closing.is_set() or self._client.market_time() >= errand.expires_at

    def _send(self, errand: ErrandSpec, result: ErrandResult) -> None:
        path = PATH_ERRAND_RESULT.format(token=errand.token)
        with contextlib.suppress(MarketError):
            self._client.send(path, result, patience=_PATIENCE)
