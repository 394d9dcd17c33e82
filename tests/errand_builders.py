"""Errands that nodes were given with their plans, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from marketplace.fleet.models import Node
from marketplace.jobs.errands import take_result
from marketplace.jobs.models import NodePlan
from workers.protocol.checks import CheckTask
from workers.protocol.errands import CHECK, EXPORT, FAULT, PROBE, ErrandResult, ErrandSpec
from workers.protocol.exports import ExportTask
from workers.protocol.fault_checks import FaultCheckTask
from workers.protocol.messages import SlotPlan
from workers.protocol.probes import ProbeTask
from workers.protocol.wire import from_json, to_json

TASKS = {CHECK: CheckTask, EXPORT: ExportTask, FAULT: FaultCheckTask, PROBE: ProbeTask}


def list_errands(node: Node, kind: str) -> Sequence[ErrandSpec]:
    """Those in the node's newest plan, with their tasks as dataclasses."""
    plan = NodePlan.objects.filter(node=node).order_by("-slot", "-revision").first()
    values = () if plan is None else from_json(SlotPlan, plan.plan).errands
    errands = [from_json(ErrandSpec, value) for value in values]
    return [
        replace(one, task=from_json(TASKS[kind], one.task)) for one in errands if one.kind == kind
    ]


def answer_errand(node: Node, token: str, found: Any, *, now: datetime) -> None:
    """The node's result; ``None``: it says that it cannot."""
    result = ErrandResult(found=None if found is None else to_json(found))
    take_result(node=node, token=token, result=result, now=now)
