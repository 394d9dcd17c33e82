"""Waking nodes that wait for questions, and owners that wait for words."""

from __future__ import annotations

from marketplace.common.db.notifications import NotificationListener, notify

_ASKED, _WRITTEN = "questions_asked", "questions_written"

#: By zone: a question waits for a node.
asked_listener = NotificationListener(_ASKED, recent_max=0)
#: By question: more was written.
written_listener = NotificationListener(_WRITTEN, recent_max=0)


def wake_nodes(zone_id: str) -> None:
    """Have the waiting nodes of a zone look when the transaction commits."""
    notify(_ASKED, [zone_id])


def wake_owners(question_ids: list[str]) -> None:
    """Have those who wait for these answers look when the transaction commits."""
    notify(_WRITTEN, question_ids)
