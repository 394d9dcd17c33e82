"""How far a machine is that joins, step by step, as its provider sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from marketplace.fleet.models import GONE, JoinToken, JoinUse, Node, NodeStatus
from workers.protocol.joining import JoinStep

LABELS = {
    JoinStep.CONNECTED: "Connected",
    JoinStep.DRIVER: "GPU and driver",
    JoinStep.DISK: "Disk",
    JoinStep.BASE: "Base model",
    JoinStep.SELF_TEST: "Self-test",
    JoinStep.ON_SALE: "On sale",
}


class TokenStatus(StrEnum):
    """Whether a machine may join with a token, or why not."""

    OPEN = "open"
    #: It listed as many nodes as it may.
    USED = "used"
    EXPIRED = "expired"
    REVOKED = "revoked"


TOKEN_STATUSES = [str(status) for status in TokenStatus]


def find_token_status(token: JoinToken, *, now: datetime) -> TokenStatus:
    if token.revoked_at is not None:
        return TokenStatus.REVOKED
    if not token.uses_left:
        return TokenStatus.USED
    return TokenStatus.EXPIRED if token.expires_at <= now else TokenStatus.OPEN


@dataclass(frozen=True, slots=True)
class ShownStep:
    label: str
    #: ``done``, ``now``, ``failed`` or ``ahead``.
    state: str
    detail: str = ""
    #: Of a step under way, where it is counted.
    share: float | None = None


@dataclass(frozen=True, slots=True)
class JoiningMachine:
    """One node that joins with a token."""

    name: str
    steps: tuple[ShownStep, ...]
    #: It has credentials of its own.
    is_listed: bool

    @property
    def is_on_sale(self) -> bool:
        return self.steps[-1].state == "done"


def list_joining_machines(token: JoinToken) -> list[JoiningMachine]:
    """The nodes that join with a token, and those that did, by name."""
    uses = JoinUse.objects.filter(token=token).select_related("node")
    listed = {use.node.name: use.node for use in uses}
    return [
        JoiningMachine(
            name, describe_steps(token.progress.get(name, {}), listed.get(name)), name in listed
        )
        for name in sorted({*token.progress, *listed})
    ]


def describe_steps(progress: Mapping[str, Any], node: Node | None) -> tuple[ShownStep, ...]:
    """Each step's state, from the machine's reports and from whether it is listed."""
    order = list(JoinStep)
    reported = [index for index, step in enumerate(order) if step in progress]
    at = order.index(JoinStep.ON_SALE) if node is not None else max(reported, default=0)
    steps = []
    for index, step in enumerate(order):
        said = progress.get(step, {})
        detail = said.get("detail", "")
        if step is JoinStep.ON_SALE and node is not None:
            steps.append(_describe_sale(node))
        elif index < at or (step is JoinStep.CONNECTED and reported):
            steps.append(ShownStep(LABELS[step], "done", detail))
        elif index > at or not reported:
            steps.append(ShownStep(LABELS[step], "ahead"))
        elif said.get("failed"):
            steps.append(ShownStep(LABELS[step], "failed", detail))
        else:
            steps.append(ShownStep(LABELS[step], "now", detail, said.get("share")))
    return tuple(steps)


def _describe_sale(node: Node) -> ShownStep:
    label = LABELS[JoinStep.ON_SALE]
    if node.status == NodeStatus.ONLINE:
        return ShownStep(label, "done", f"from the next slot of {node.zone.slot_s} s on")
    if node.status == NodeStatus.RESTING and node.available_from_at is not None:
        return ShownStep(label, "done", f"rests until {node.available_from_at:%H:%M} UTC")
    if node.status in GONE:
        return ShownStep(label, "failed", f"It is {NodeStatus(node.status).label.lower()} now.")
    return ShownStep(label, "now", "loading the base model to run")
