"""The node's queue over HTTPS: how its Celery worker gets plans.

The market answers with the newest plan of the node that is not over, as soon as there is one that
the node does not name as held. So a plan whose answer was lost, or whose process died, is handed
out again; a node takes the same plan twice as once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: POST under the node's bearer token: begin to take plans. It ends the node's earlier session.
PATH_PLAN_SESSION = "/internal/v1/plans/session"
#: POST under the node's bearer token, answered when there is a plan or the wait is over.
PATH_NEXT_PLAN = "/internal/v1/plans/next"
#: POST under the node's bearer token: another one in its place.
PATH_TOKEN = "/internal/v1/token"  # noqa: S105

#: The problem's ``code`` for a session that another process of the node ended.
SUPERSEDED = "session_superseded"


@dataclass(frozen=True, slots=True)
class PlanSessionRequest:
    """Of a process that begins to take plans: the versions of messages that it speaks."""

    least_version: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class PlanSession:
    """Of one process of a node: the newest alone gets plans."""

    session: str


@dataclass(frozen=True, slots=True)
class NextPlanRequest:
    node_id: str
    session: str
    #: Slot and revision of the newest plan that the process has taken.
    held_slot: int | None = None
    held_revision: int = 0
    #: Seconds the market may take to answer; it waits no longer than it wants to.
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NextPlanReply:
    #: A ``SlotPlan`` as JSON value; ``None`` where there is nothing new.
    plan: Any = None
    slot: int = 0
    revision: int = 0
    #: The node's token is old: ask for another.
    rotate_token: bool = False


@dataclass(frozen=True, slots=True)
class NodeToken:
    """A new bearer token; the one before is valid until shortly after the first use of this."""

    api_token: str
