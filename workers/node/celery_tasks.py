"""The one Celery task of a node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery

from workers.protocol.messages import TASK_RUN_SLOT, SlotPlan
from workers.protocol.wire import ProtocolError, from_json

log = logging.getLogger(__name__)


def register_tasks(app: Celery, *, offer: Callable[[SlotPlan], None]) -> None:
    """Have plans that arrive on the node's queue handed to ``offer``.

    ``offer`` compares a plan with what runs already, so a plan may arrive twice.
    """

    # Not shared: another application in this process must not get it.
    @app.task(name=TASK_RUN_SLOT, shared=False)
    def run_slot(*, plan: Any) -> None:
        try:
            offer(from_json(SlotPlan, plan, ignores_unknown=True))
        except ProtocolError as error:
            # Trying again cannot help; the market notices that the slot was not taken up.
            log.error("a plan is not understood: %s", error)
