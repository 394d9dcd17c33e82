"""Random markets: a zone's rules, its nodes, and everything that happens to it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.joint.least_laxity import plan_by_laxity
from scheduler.auction.log import events
from scheduler.auction.log.events import Event
from scheduler.auction.search.room import PromisedJob
from scheduler.experiments.auction.max_form.engine import make_engine
from scheduler.experiments.auction.max_form.policies import max_form_rules
from scheduler.types import Cell, Decision, LaborVendor, NodeSpec, Task
from tests.unit.scheduler.auction.builders import enter

TYPES = ("a100", "a40", "l4")


def random_rules(rng: Random, *, policy: str) -> ZoneRules:
    """Draw rules; prices rise fast enough to matter within a few bids."""
    first = ZoneRules(
        policy=policy,
        base_memory=2.0,
        horizon_slots=rng.randint(4, 10),
        first_slot=rng.randint(-2, 3),
        money_quantum=rng.choice([0.0, 1.0]),
        late_slots=4,
    )
    form = max_form_rules(
        money_scale=rng.choice([None, 0.02]), steepness=rng.choice([0.1, 0.5, 2.0])
    )
    return first if policy == "lagrangian" else replace(first, settings=form)


def random_node(rng: Random, name: str) -> NodeSpec:
    """Draw a node; a few are on sale for some slots only."""
    start = rng.randint(-2, 8)
    return NodeSpec(
        id=name,
        gpu_type=rng.choice(TYPES),
        compute_capacity=rng.choice([8.0, 10.0, 12.5]),
        memory_capacity=rng.choice([10.0, 16.0]),
        ask=rng.choice([0.0, 3.0, rng.uniform(0.0, 10.0)]),
        available_from=start if rng.random() < 0.2 else None,
        available_until=start + rng.randint(0, 8) if rng.random() < 0.2 else None,
        is_verified=rng.random() < 0.7,
    )


def random_task(rng: Random, name: str, slot: int) -> Task:
    """Draw a task whose bid is in the range of prices."""
    demand = rng.choice([float(rng.randint(1, 30)), rng.uniform(1.0, 30.0)])
    return Task(
        id=name,
        arrival_slot=slot + rng.randint(0, 1),
        deadline_slot=slot + rng.randint(0, 9),
        compute_demand=demand,
        memory_demand=rng.choice([1.0, 3.0, rng.uniform(0.5, 9.0)]),
        bid=demand * rng.uniform(0.2, 6.0),
        rates={
            name: rng.choice([2.0, 3.0, rng.uniform(1.0, 6.0)])
            for name in rng.sample(TYPES, rng.randint(1, 3))
        },
        vendors=tuple(
            LaborVendor(
                id=f"vendor-{n}", price=rng.uniform(0.0, 5.0), delay_slots=rng.randint(0, 3)
            )
            for n in range(rng.choice([0, 0, 1, 2]))
        ),
        verified_only=rng.random() < 0.25,
    )


class Market:
    """An engine under a random script, with an account kept on the side."""

    def __init__(self, seed: int, *, policy: str, rules: ZoneRules | None = None) -> None:
        self.rng = Random(seed)
        self.rules = rules or random_rules(self.rng, policy=policy)
        self.engine = make_engine(self.rules)
        self.slot = self.rules.first_slot
        self.tasks: dict[str, Task] = {}
        self.nodes = 0
        self.bids = 0
        #: Owners end jobs, at any price.
        self.gives_back = False

    def run(self, steps: int) -> list[ChainEntry]:
        """Let things happen; give what the log says of them."""
        return [entry for _ in range(steps) for entry in enter(self.engine, self.next_event())]

    def next_event(self) -> Event:
        """Draw what happens next, given what is there now."""
        rng = self.rng
        if self.nodes < 2:
            return self._join()
        kind = rng.choices(
            ("bid", "slot", "join", "change", "leave", "release", "replan", "move"),
            weights=(12, 3, 1, 1, 1, 2, 2, 2),
        )[0]
        names = [node.id for node in self.engine.nodes]
        held: dict[str, list[Cell]] = defaultdict(list)
        for reservation in self.engine.reservations():
            held[reservation.task_id].append(reservation.cell)
        if kind == "slot":
            self.slot += rng.choice([1, 1, 1, 2, 30])
            return events.SlotAdvanced(self.slot)
        if kind == "join":
            return self._join()
        if kind == "change" and names:
            return events.NodeChanged(random_node(rng, rng.choice(names)))
        if kind == "leave" and names:
            return events.NodeLeft(rng.choice(names), self.slot + rng.randint(0, 3))
        if kind == "release" and held:
            name = rng.choice(sorted(held))
            some = rng.sample(held[name], rng.randint(1, len(held[name])))
            released = events.CellsReleased(name, (*some, Cell(self.slot, "nobody")))
            if self.gives_back:
                return self._give_back(released)
            # One that keeps cells goes on, and pays its whole price.
            is_over = len(some) == len(held[name])
            return replace(released, paid_share=rng.random() if is_over else 1.0)
        if kind == "replan" and held:
            name = rng.choice(sorted(held))
            task = replace(
                self.tasks[name],
                compute_demand=rng.uniform(1.0, 40.0),
                arrival_slot=self.slot,
                vendors=(),
            )
            return events.TaskReplanned(
                task,
                self.slot + rng.randint(0, 1),
                preferred_node=rng.choice([None, None, *names, "nobody"]),
                avoided_nodes=tuple(rng.sample(names, rng.randint(0, min(2, len(names))))),
                tolerance=rng.choice([None, 0.0, 0.1, 1.0]),
            )
        if kind == "move" and held:
            return self.move(rng.sample(sorted(held), min(len(held), rng.randint(1, 4))))
        return self.bid()

    def _give_back(self, released: events.CellsReleased) -> events.CellsReleased:
        task = self.tasks[released.task_id]
        begin = min(self.slot + 1, task.deadline_slot)
        rest = replace(task, arrival_slot=begin, bid=0.0, vendors=(), owner="")
        return replace(released, rest=rest, paid=1000)

    def promise(self, task_id: str) -> PromisedJob:
        """Give what a task's cells from the next slot on do, and by when it was promised."""
        task = self.tasks[task_id]
        types = {node.id: node.gpu_type for node in self.engine.nodes}
        cells = [r.cell for r in self.engine.reservations() if r.task_id == task_id]
        ahead = [cell for cell in cells if cell.slot > self.slot]
        return PromisedJob(
            task_id=task_id,
            deadline_slot=task.deadline_slot,
            compute_demand=sum(task.rates.get(types[cell.node], 0.0) for cell in ahead),
            memory_demand=task.memory_demand,
            rates=task.rates,
            verified_only=task.verified_only,
        )

    def move(self, task_ids: list[str]) -> events.PlansMoved:
        """Draw a joint plan in which some tasks have lost their cells."""
        lost = self.rng.randint(1, len(task_ids))
        promises = [self.promise(task_id) for task_id in task_ids]
        plan = plan_by_laxity(
            self.engine, lost=promises[:lost], movable=promises[lost:], slot=self.slot + 1
        )
        return events.PlansMoved(plan.moves, self.slot + 1, plan.given_up)

    def _join(self) -> Event:
        self.nodes += 1
        return events.NodeJoined(random_node(self.rng, f"node-{self.nodes}"))

    def bid(self) -> events.BidArrived:
        """Draw the next bid."""
        self.bids += 1
        task = random_task(self.rng, f"task-{self.bids}", self.slot)
        self.tasks[task.id] = task
        return events.BidArrived(task, self.slot)


def find_strangers(market: Market) -> list[str]:
    """Say which tasks for verified nodes hold cells of others."""
    verified = {node.id for node in market.engine.nodes if node.is_verified}
    return [
        f"{held} is not verified"
        for held in market.engine.reservations()
        if market.tasks[held.task_id].verified_only and held.cell.node not in verified
    ]


def overuse(engine: Engine) -> list[str]:
    """Say what breaks (4b), (4f), (4g) or the nodes' availability, from scratch."""
    nodes = {node.id: node for node in engine.nodes}
    compute: dict[Cell, float] = defaultdict(float)
    memory: dict[Cell, float] = defaultdict(float)
    by_task: dict[str, list[int]] = defaultdict(list)
    wrong: list[str] = []
    for held in engine.reservations():
        node = nodes.get(held.cell.node)
        if node is None:
            wrong.append(f"{held} is on a node that left")
            continue
        begin, end = node.available_from, node.available_until
        if (begin is not None and held.cell.slot < begin) or (
            end is not None and held.cell.slot > end
        ):
            wrong.append(f"{held} is outside the node's sale")
        if held.cell.slot not in engine.horizon:
            wrong.append(f"{held} is not in the horizon")
        compute[held.cell] += held.rate
        memory[held.cell] += held.memory
        by_task[held.task_id].append(held.cell.slot)
    for cell, used in compute.items():
        if cell.node in nodes and used > nodes[cell.node].compute_capacity * (1 + 1e-8):
            wrong.append(f"{cell} is sold for {used} samples")
    for cell, used in memory.items():
        if cell.node not in nodes:
            continue
        room = nodes[cell.node].memory_capacity - engine.rules.base_memory
        if used > room * (1 + 1e-8):
            wrong.append(f"{cell} is sold for {used} GB")
    for task_id, slots in by_task.items():
        if len(slots) != len(set(slots)):
            wrong.append(f"{task_id} holds two nodes in one slot")
    return wrong


def faults_of(decision: Decision, task: Task, slot: int, engine: Engine) -> list[str]:
    """Say which of (4b)-(4e) and of the payment's bounds an admission breaks."""
    if not decision.admitted:
        return []
    assert decision.schedule is not None
    assert decision.parts is not None
    schedule, parts = decision.schedule, decision.parts
    types = {node.id: node.gpu_type for node in engine.nodes}
    ready = task.arrival_slot
    if task.vendors:
        ready += task.vendors[schedule.vendor].delay_slots
    slots = [cell.slot for cell in schedule.cells]
    work = sum(task.rates[types[cell.node]] for cell in schedule.cells)
    wrong: list[str] = []
    if min(slots) < max(ready, slot):
        wrong.append("starts too early")
    if max(slots) > task.deadline_slot:
        wrong.append("ends too late")
    if slots != sorted(set(slots)):
        wrong.append("uses a slot twice")
    if work < task.compute_demand * (1 - 1e-9):
        wrong.append("does not cover the work")
    if (schedule.vendor >= 0) != bool(task.vendors):
        wrong.append("has the wrong vendor")
    if not decision.payment < task.bid:
        wrong.append("pays its bid or more")
    if decision.payment < parts.vendor + parts.operational - 1e-9:
        wrong.append("leaves a provider out of pocket")
    return wrong
