"""How far a machine is that joins, step by step, as its provider sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.common.errors import NotFound
from marketplace.fleet.models import GONE, JoinToken, JoinUse, Node, NodeStatus
from marketplace.web.views.requests import PageRequest, owner_page
from workers.protocol.joining import JoinStep

LABELS = {
    JoinStep.CONNECTED: "Connected",
    JoinStep.DRIVER: "GPU and driver",
    JoinStep.DISK: "Disk",
    JoinStep.BASE: "Base model",
    JoinStep.SELF_TEST: "Self-test",
    JoinStep.ON_SALE: "On sale",
}


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

    @property
    def is_on_sale(self) -> bool:
        return self.steps[-1].state == "done"


@owner_page
@require_GET
def show_joining(request: PageRequest, token_id: str) -> HttpResponse:
    """The steps alone, which the page of the join command asks for again and again."""
    token = (
        JoinToken.objects.select_related("zone")
        .filter(pk=token_id.replace("\0", ""), provider__organisation=request.organisation)
        .first()
    )
    if token is None:
        raise NotFound("unknown_join_token", "There is no such join token.")
    return render(request, "console/joining.html", {"token": token, **load_joining(token)})


def load_joining(token: JoinToken) -> dict[str, Any]:
    """What ``console/join_steps.html`` shows of a token."""
    uses = JoinUse.objects.filter(token=token).select_related("node")
    listed = {use.node.name: use.node for use in uses}
    names = sorted({*token.progress, *listed})
    machines = [
        JoiningMachine(name, describe_steps(token.progress.get(name, {}), listed.get(name)))
        for name in names
    ]
    on_sale = sum(machine.is_on_sale for machine in machines)
    wanted = token.uses_left + len(listed)
    return {"token": token, "machines": machines, "on_sale": on_sale, "wanted": wanted}


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
