"""Hearing of decisions, for the requests that wait for one."""

from __future__ import annotations

from marketplace.auction.lane.wakeups import DECIDED_CHANNEL
from marketplace.common.db.notifications import NotificationListener

#: Seconds a waiting request trusts the listener before it looks at the row itself.
LOOK_EVERY_S = 0.5
#: Decisions remembered, for requests that begin to wait after the notification came.
RECENT_MAX = 4096

#: The process's one listener to decisions.
listener = NotificationListener(DECIDED_CHANNEL, recent_max=RECENT_MAX)
