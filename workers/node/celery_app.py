"""A node's Celery application: JSON only, one queue, nothing remote but its plans."""

from __future__ import annotations

from ssl import CERT_REQUIRED
from typing import Any
from urllib.parse import urlsplit

from celery import Celery


def build_celery_app(*, broker_url: str, queue: str) -> Celery:
    """The application of one node.

    Parameters
    ----------
    broker_url, queue : str
        As joining the market gave them.
    """
    # No fix-ups: where DJANGO_SETTINGS_MODULE is set, Celery's own would load the market's
    # application into this process, and plans would be looked up in that one.
    app = Celery("finetender-node", broker=broker_url, set_as_current=False, fixups=set())
    app.conf.update(
        **_transport_settings(broker_url),
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
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        # Never stop trying: the market's broker may be away for as long as it likes.
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 15,
            "visibility_timeout": 3600,
            # A node's broker user may touch keys that begin with its queue's name, no others.
            "unacked_key": f"{queue}.unacked",
            "unacked_index_key": f"{queue}.unacked_index",
            "unacked_mutex_key": f"{queue}.unacked_mutex",
        },
    )
    return app


def _transport_settings(broker_url: str) -> dict[str, Any]:
    """The node's own transport for Redis, with certificates checked where TLS is spoken."""
    scheme = urlsplit(broker_url).scheme
    if scheme not in {"redis", "rediss"}:
        return {}
    own = {"broker_transport": "workers.node.broker_transport:Transport"}
    return own if scheme == "redis" else own | {"broker_use_ssl": {"ssl_cert_reqs": CERT_REQUIRED}}
