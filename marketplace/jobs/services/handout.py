"""Handing nodes their plans, to those that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from marketplace.common.errors import Conflict, UserError
from marketplace.fleet.models import Node
from marketplace.fleet.tokens import is_token_old
from marketplace.jobs.models import NodePlan
from workers.protocol.plan_queue import SUPERSEDED, NextPlanReply, NextPlanRequest


def hand_out_plans(
    *, asked: Sequence[tuple[Node, NextPlanRequest]], now: datetime
) -> list[NextPlanReply | UserError]:
    """An answer to each node: its newest plan, where that is not over and the node lacks it.

    Without a plan to hand out, the answer holds none. If the request names another node than its
    token (``wrong_node``) or an ended session (``session_superseded``), the answer is that error;
    it is not raised. Nothing is counted as delivered: a node that asks again without naming the
    plan as held gets it again.
    """
    newest = NodePlan.objects.filter(node__in={node.pk for node, _ in asked}, ends_at__gt=now)
    plans = {
        plan.node_id: plan
        for plan in newest.order_by("node_id", "-slot", "-revision").distinct("node_id")
    }
    answers: list[NextPlanReply | UserError] = []
    taken: list[int] = []
    for node, request in asked:
        refusal = _find_refusal(node, request)
        plan = plans.get(node.pk)
        if refusal is not None:
            answers.append(refusal)
        elif plan is None or _is_held(plan, request):
            answers.append(NextPlanReply(rotate_token=is_token_old(node, now=now)))
        else:
            taken.append(plan.pk)
            answers.append(NextPlanReply(plan.plan, plan.slot, plan.revision))
    if taken:
        NodePlan.objects.filter(pk__in=taken, taken_at=None).update(taken_at=now)
    return answers


def _find_refusal(node: Node, request: NextPlanRequest) -> UserError | None:
    if request.node_id != node.pk:
        return UserError("wrong_node", "This request names another node than its token.")
    if request.session != node.plan_session or not request.session:
        return Conflict(SUPERSEDED, "Another process of this node takes its plans now.")
    return None


def _is_held(plan: NodePlan, request: NextPlanRequest) -> bool:
    if request.held_slot is None:
        return False
    return (plan.slot, plan.revision) <= (request.held_slot, request.held_revision)
