"""Receiving plans: a Celery worker on a thread of this process, started again if it falls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery.worker import state

from workers.node.celery_app import build_celery_app, register_tasks
from workers.node.credentials import Credentials
from workers.node.market_client import MarketClient
from workers.node.plan_puller import PlanPuller
from workers.protocol.messages import SlotPlan

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 30.0


class PlanReceiver:
    """Consumes the node's queue until it is closed; the market may come and go.

    Parameters
    ----------
    offer
        Called with each plan.
    refused, rotated
        As in ``PlanPuller``.
    """

    def __init__(
        self,
        credentials: Credentials,
        client: MarketClient,
        *,
        offer: Callable[[SlotPlan], None],
        refused: Callable[..., None],
        rotated: Callable[[str], None],
    ) -> None:
        self._puller = PlanPuller(
            client, node_id=credentials.node_id, refused=refused, rotated=rotated
        )
        self._queue = f"node.{credentials.node_id}"
        self._app = build_celery_app(queue=self._queue, plans=self._puller)
        register_tasks(self._app, offer=offer)
        self._name = f"{credentials.node_id}@{credentials.name}"
        self._closing = threading.Event()
        #: Set once the queue is consumed for the first time.
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plans", daemon=True)

    def start(self) -> None:
        # Celery keeps this wish per process; an earlier receiver may have left it set.
        state.should_stop = None
        self._puller.start()
        self._thread.start()

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Stop consuming; what was received is handed over already."""
        self._closing.set()
        self._puller.close()
        state.should_stop = 0
        self._thread.join(timeout_s)

    def _run(self) -> None:
        # Celery looks up a received task in its thread's application.
        self._app.set_current()
        pause = 1.0
        while not self._closing.is_set():
            try:
                self._consume()
            # Whatever the consumer fell over, the node goes on with its jobs meanwhile.
            except Exception:
                log.exception("receiving plans failed")
            if self._closing.wait(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            log.warning("receiving plans again")

    def _consume(self) -> None:
        worker = self._app.WorkController(
            hostname=self._name,
            queues=[self._queue],
            pool="solo",
            concurrency=1,
            ready_callback=lambda _: self.ready.set(),
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
        )
        worker.start()
