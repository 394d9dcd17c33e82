"""The files by which independent implementations check each other.

A *solve* file holds one task with given dual prices; a *replay* file holds a
task sequence. Slots are 0..T-1, nodes 0..K-1, windows inclusive, matrices are
``[node][slot]`` and cells ``[slot, node]``. With ``f = 0`` the data need no
cleaning: vendor -1, q = h = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler.auction.log.events import BidArrived, NodeJoined, VendorChanged
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.grid import Grid
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.experiments.auction.max_form.policies import max_form_rules
from scheduler.experiments.auction.max_form.search import PrintedSearch
from scheduler.types import (
    NO_VENDOR,
    Decision,
    Horizon,
    LaborVendor,
    NodeSpec,
    Refusal,
    Schedule,
    Task,
    VendorCapacity,
)


def solve(data: Mapping[str, Any]) -> dict[str, Any]:
    """Give the exact optimum of (12) for each vendor of one task.

    Parameters
    ----------
    data : mapping
        ``K``, ``T``, ``task``, ``lam`` and ``phi`` as described above.

    Returns
    -------
    dict
        ``per_vendor`` (``vendor``, ``q``, ``h``, ``feasible`` and, where
        feasible, ``obj`` and ``cells``), ``best_vendor`` and ``best_F``, the
        last two null when no vendor has a schedule.

    Raises
    ------
    ValueError
        If ``lam`` or ``phi`` is not a matrix of ``K`` rows of ``T`` amounts.
    """
    slots, nodes = int(data["T"]), int(data["K"])
    prices = [np.array(data[name], np.float64) for name in ("lam", "phi")]
    for name, matrix in zip(("lam", "phi"), prices, strict=True):
        if matrix.shape != (nodes, slots):
            raise ValueError(f"{name} must have K = {nodes} rows of T = {slots} amounts")
    task = _task(data["task"])
    grid = Grid(horizon=Horizon(first_slot=0, slots=slots), base_memory=0.0)
    for k in range(nodes):
        # Prices alone decide here: capacities are not part of the question.
        grid.add_node(
            NodeSpec(id=str(k), gpu_type=str(k), compute_capacity=1.0, memory_capacity=1.0)
        )
    grid.compute_price[:], grid.memory_price[:] = (matrix.T for matrix in prices)
    offers = list(enumerate(task.vendors)) or [(NO_VENDOR, LaborVendor("", 0.0, 0))]
    per_vendor: list[dict[str, Any]] = []
    best: tuple[float, int] | None = None
    for index, vendor in offers:
        alone = replace(task, vendors=(replace(vendor, price=0.0, load=0),))
        plan = PrintedSearch(grid=grid, task=alone, from_slot=0).find_plan(task.deadline_slot)
        line: dict[str, Any] = {
            "vendor": index,
            "q": vendor.price,
            "h": vendor.delay_slots,
            "feasible": plan is not None,
        }
        if plan is not None:
            line["obj"] = plan.price
            line["cells"] = _cells(plan.schedule)
            surplus = task.bid - vendor.price - plan.price
            if best is None or surplus > best[0]:
                best = (surplus, index)
        per_vendor.append(line)
    return {
        "per_vendor": per_vendor,
        "best_vendor": None if best is None else best[1],
        "best_F": None if best is None else best[0],
    }


def replay(data: Mapping[str, Any], *, policy: str) -> dict[str, Any]:
    """Decide a task sequence in list order and give the decision log.

    Parameters
    ----------
    data : mapping
        ``K``, ``T``, ``Cp``, ``Cm``, ``rb``, ``alpha``, ``beta`` and ``tasks``. With ``Cv``,
        what each vendor does in a slot, offers are ``[q, h, load]``.
    policy : str
        ``printed`` or ``residual``.

    Returns
    -------
    dict
        ``log`` (``id``, ``admit``, ``payment``, ``reason``, ``F``, ``vendor``,
        ``cells``) and ``welfare``.

    Raises
    ------
    ValueError
        If the file asks for scaled units, which its numbers should carry.
    """
    scale: Mapping[str, Any] = data.get("scale", {})
    if any(float(value) != 1.0 for value in scale.values()):
        raise ValueError("scale must be 1: scale the amounts in the file instead")
    engine = make_engine(
        ZoneRules(
            policy=policy,
            base_memory=float(data["rb"]),
            horizon_slots=int(data["T"]),
            refusal_hints=False,
            settings=max_form_rules(
                alpha=float(data["alpha"]), beta=float(data["beta"]), money_scale=1.0
            ),
        )
    )
    for k in range(int(data["K"])):
        node = NodeSpec(
            id=str(k),
            gpu_type=str(k),
            compute_capacity=float(data["Cp"][k]),
            memory_capacity=float(data["Cm"][k]),
        )
        engine.transition(NodeJoined(node))
    for n, capacity in enumerate(data.get("Cv", ())):
        engine.transition(VendorChanged(VendorCapacity(str(n), int(capacity))))
    log: list[dict[str, Any]] = []
    welfare = 0.0
    for item in data["tasks"]:
        task = _task(item)
        decision = engine.transition(BidArrived(task=task, slot=task.arrival_slot))
        assert isinstance(decision, Decision)
        if decision.admitted and decision.parts is not None:
            welfare += task.bid - decision.parts.vendor - decision.parts.operational
        log.append(
            {
                "id": item["id"],
                "admit": decision.admitted,
                "payment": decision.payment,
                "reason": _reason(decision),
                "F": decision.surplus,
                "vendor": None if decision.schedule is None else decision.schedule.vendor,
                "cells": None if decision.schedule is None else _cells(decision.schedule),
            }
        )
    return {"log": log, "welfare": welfare}


def _task(item: Mapping[str, Any]) -> Task:
    arrival = int(item["a"])
    offers: list[list[float]] = item["vendors"] if item["f"] else []
    return Task(
        id=str(item["id"]),
        arrival_slot=arrival,
        deadline_slot=int(item["d"]),
        compute_demand=float(item["M"]),
        memory_demand=float(item["r"]),
        bid=float(item["b"]),
        rates={str(k): float(rate) for k, rate in enumerate(item["s"])},
        vendors=tuple(
            LaborVendor(str(n), float(q), int(h), int(load[0]) if load else 0)
            for n, (q, h, *load) in enumerate(offers)
        ),
        operational_costs={
            str(k): tuple(float(x) for x in row[arrival:]) for k, row in enumerate(item["e"])
        },
    )


def _cells(schedule: Schedule) -> list[list[int]]:
    return [[cell.slot, int(cell.node)] for cell in schedule.cells]


def _reason(decision: Decision) -> str:
    if decision.admitted:
        return "admit"
    if decision.refusal is Refusal.PRICE:
        return "price"
    return "nosched" if decision.schedule is None else "capacity"
