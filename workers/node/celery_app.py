"""A node's Celery application: JSON only, one queue, one task, nothing remote but its plans."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery import Celery
from kombu.serialization import dumps

from workers.node.plan_puller import PlanPuller
from workers.node.plan_transport import BUILD_MESSAGE, PLANS
from workers.protocol.messages import TASK_RUN_SLOT, SlotPlan
from workers.protocol.plan_queue import NextPlanReply
from workers.protocol.wire import ProtocolError, from_json

log = logging.getLogger(__name__)


def build_celery_app(*, queue: str, plans: PlanPuller) -> Celery:
    """The application of one node, whose queue is what ``plans`` brings."""
    # No fix-ups: where DJANGO_SETTINGS_MODULE is set, Celery's own would load the market's
    # application into this process, and plans would be looked up in that one.
    app = Celery("finetender-node", set_as_current=False, fixups=set())
    app.conf.update(
        # Not the market's address: Celery would print it, and the puller knows it.
        broker_url="market://",
        broker_transport="workers.node.plan_transport:Transport",
        broker_transport_options={
            PLANS: plans,
            BUILD_MESSAGE: lambda reply: _build_message(app, queue, reply),
        },
        task_default_queue=queue,
        task_create_missing_queues=False,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        # A plan is only received by its task, so one that dies with the process is taken again.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        # No one may control this process through the broker.
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
    )
    return app


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


def _build_message(app: Celery, queue: str, reply: NextPlanReply) -> dict[str, Any]:
    """A plan as the message that Celery would find in a broker's queue."""
    name = f"{reply.slot}.{reply.revision}"
    task = app.amqp.as_task_v2(name, TASK_RUN_SLOT, args=(), kwargs={"plan": reply.plan})
    content_type, encoding, body = dumps(task.body, serializer="json")
    return {
        "body": body,
        "content-type": content_type,
        "content-encoding": encoding,
        "headers": task.headers,
        "properties": task.properties
        | {"delivery_info": {"exchange": "", "routing_key": queue, "priority": 0}},
    }
