"""kombu's transport of a node: its one queue is what the market hands out over HTTPS.

A Celery worker consumes it like any broker's. It gets plans from a ``PlanPuller``, which talks to
the market and tries again by itself, so a connection here never fails. Nothing can be published.
"""

from __future__ import annotations

from queue import Empty
from typing import Any, NoReturn

from kombu.transport import virtual
from kombu.utils.scheduling import FairCycle

from workers.node.plan_puller import PlanPuller

#: Option of the transport: a function from a plan to a message of kombu.
BUILD_MESSAGE = "build_message"
#: Option of the transport: the ``PlanPuller``.
PLANS = "plans"
#: Seconds one look waits for a plan, and so until a worker notices that it should stop.
_LOOK_S = 0.5


class Channel(virtual.Channel):
    #: What was not handled when the process ends is handed out again by the market.
    do_restore = False
    connection: Transport

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        options = self.connection.client.transport_options
        plans: PlanPuller = options[PLANS]
        message = options[BUILD_MESSAGE](plans.take(_LOOK_S))
        message["properties"]["delivery_tag"] = self._next_delivery_tag()
        return message

    def _restore(self, message: Any) -> None:
        plans: PlanPuller = self.connection.client.transport_options[PLANS]
        plans.give_back()

    def _put(self, queue: str, message: Any, **_: Any) -> NoReturn:
        raise NotImplementedError("A node sends nothing to queues.")

    def _purge(self, queue: str) -> int:
        return 0


class Transport(virtual.Transport):
    Channel = Channel
    cycle: FairCycle
    driver_type = "https"
    driver_name = "finetender"
    #: No pause between looks: each waits by itself.
    polling_interval = None
    can_parse_url = True

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one plan.

        Raises
        ------
        TimeoutError
            None came within ``_LOOK_S``.
        """
        try:
            self.cycle.get(self._deliver, timeout=timeout)
        except Empty:
            raise TimeoutError from None
