"""Waking the requests in which nodes wait for their plans."""

from __future__ import annotations

from collections.abc import Iterable

from marketplace.common.db.notifications import NotificationListener, notify

_CHANNEL = "fleet_nodes"

#: The process's one listener to calls, by node id.
listener = NotificationListener(_CHANNEL, recent_max=0)


def notify_nodes(node_ids: Iterable[str]) -> None:
    """Have the waiting requests of these nodes look again when the transaction commits.

    A plan, a new session or a revoked token is such a reason.
    """
    notify(_CHANNEL, node_ids)
