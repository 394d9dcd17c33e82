"""The loop: whose turn it is, what they do, and what of it a fault takes away."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, connection

from marketplace.common import clock
from marketplace.common.errors import MarketFault, UserError
from marketplace.config.celery import app
from marketplace.fleet.models import Zone
from marketplace.jobs.services import LeaseLost
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.world import invariants
from tests.world.faults import Fault, ProcessDied, Trouble, bury_process, leave_task, meet_trouble
from tests.world.owners import Owner
from tests.world.simulated_nodes import SimulatedNode

#: Of the steps, the share in which a fault may strike.
FAULTS_SHARE = 0.3
#: A statement within so many is the one that a fault strikes at.
STATEMENTS = 40
#: Steps between two looks at what takes longer to look at.
VERIFY_EVERY = 25
OWNERS, NODES = 3, 3
#: What calls other companies' servers; the world has none of them.
OUTSIDE = ("payments.gateway_compare", "auction.fetch_witnessed_heads", "tiers.reconcile")

Action = Callable[[], object]


class WorldBroken(AssertionError):
    """An invariant does not hold; the steps that led there are in the message."""


@dataclass
class World:
    seed: int
    rng: random.Random
    trouble: Trouble
    zone: Zone
    owners: list[Owner]
    nodes: list[SimulatedNode]
    now: datetime = NOW
    #: What was sent to the broker and not done yet.
    queue: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    lost_messages: int = 0
    doubled_messages: int = 0
    jumps: int = 0

    def run(self, steps: int) -> None:
        for number in range(steps):
            self.step(number)
        self.settle()

    def step(self, number: int) -> None:
        self._move_clock()
        name, action = self._choose()
        fault = self._choose_fault()
        self.told.append(f"{number} {self.now:%H:%M:%S} {name}{f', {fault}' if fault else ''}")
        try:
            self._do(action, fault)
            invariants.check(self)
            if number % VERIFY_EVERY == VERIFY_EVERY - 1:
                invariants.check_log(self.zone)
        except Exception as error:
            raise WorldBroken(self._describe(error)) from error

    def settle(self) -> None:
        """Let all that was begun come to its end without a fault, and look at everything."""
        self.trouble.fault = None
        try:
            for owner in self.owners:
                self._do(partial(owner.ask_again, self), None)
            for _ in range(120):
                if invariants.is_at_rest():
                    break
                self.now += timedelta(seconds=market.SLOT_S / 2)
                for node in self.nodes:
                    node.silent_until = self.now
                    self._do(partial(node.beat, self), None)
                    for _ in range(4):
                        self._do(partial(node.work, self), None)
                for task in settings.CELERY_BEAT_SCHEDULE.values():
                    if task["task"] not in OUTSIDE:
                        self._run_task(task["task"], {})
                self._deliver_all()
            invariants.check(self)
            invariants.check_rest(self)
        except Exception as error:
            raise WorldBroken(self._describe(error)) from error

    def send(self, name: str, args: Any = None, kwargs: Any = None, **_: Any) -> None:
        """Take a message as the broker does."""
        self.queue.append((name, dict(kwargs or {})))

    def _describe(self, error: Exception) -> str:
        steps = "\n".join(self.told[-25:])
        return f"seed {self.seed}: {error!r}\n{steps}"

    def _move_clock(self) -> None:
        self.now += timedelta(seconds=self.rng.uniform(0.1, 4.0))
        draw = self.rng.random()
        if draw < 0.02:
            self.jumps += 1
            self.now += timedelta(seconds=self.rng.uniform(20, 200))
        elif draw < 0.04:
            self.jumps += 1
            self.now -= timedelta(seconds=self.rng.uniform(1, 8))

    def _choose(self) -> tuple[str, Action]:
        owner, node = self.rng.choice(self.owners), self.rng.choice(self.nodes)
        beats = [row["task"] for row in settings.CELERY_BEAT_SCHEDULE.values()]
        task = self.rng.choice([name for name in beats if name not in OUTSIDE])
        kinds: list[tuple[int, str, Action]] = [
            (14, "an owner bids", lambda: owner.bid(self)),
            (4, "an owner asks again", lambda: owner.ask_again(self)),
            (3, "an owner cancels", lambda: owner.cancel(self)),
            (12, "a node's heartbeat", lambda: node.beat(self)),
            (30, "a node works", lambda: node.work(self)),
            (2, "a node falls silent", lambda: node.fall_silent(self)),
            (3, "a node says an old thing again", lambda: node.repeat(self)),
            (12, "slots are dispatched", lambda: self._run_task("jobs.slots_dispatch", {})),
            (8, "leases are swept", lambda: self._run_task("jobs.leases_sweep", {})),
            (8, "the lane's sweep", lambda: self._run_task("auction.sweep", {})),
            (4, "prices are asked for", lambda: self._run_task("auction.prices_sweep", {})),
            (6, "jobs are settled", lambda: self._run_task("auction.settle_finished", {})),
            (12, f"the beat's {task}", lambda: self._run_task(task, {})),
            (24, "a message is delivered", self._deliver),
        ]
        _, name, action = self.rng.choices(kinds, [kind[0] for kind in kinds])[0]
        return name, action

    def _choose_fault(self) -> Fault | None:
        if self.rng.random() >= FAULTS_SHARE:
            return None
        self.trouble.statements_left = self.rng.randint(1, STATEMENTS)
        return self.rng.choice(list(Fault))

    def _do(self, action: Action, fault: Fault | None) -> None:
        self.trouble.fault = fault
        struck = dict(self.trouble.struck)
        try:
            action()
        except ProcessDied:
            bury_process()
        except (UserError, LeaseLost):
            # Refusals; what they leave behind is looked at as anything else.
            pass
        except (DatabaseError, OSError, MarketFault):
            if struck == self.trouble.struck:
                raise
        finally:
            self.trouble.fault = None
            leave_task()

    def act_meanwhile(self) -> None:
        """Let another process do one thing, to its end, while this one is held up."""
        name, action = self._choose()
        self.told.append(f"    meanwhile {name}")
        broken: list[BaseException] = []

        def run() -> None:
            try:
                with connection.cursor() as cursor:
                    # The one that is held up may have what this one needs.
                    cursor.execute("SET lock_timeout = '200ms'")
                action()
            except (UserError, LeaseLost, DatabaseError):
                pass
            except BaseException as error:
                broken.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if broken:
            raise broken[0]

    def _deliver(self) -> None:
        if not self.queue:
            return
        message = self.queue.pop(self.rng.randrange(len(self.queue)))
        draw = self.rng.random()
        if draw < 0.1:
            self.lost_messages += 1
            return
        if draw < 0.2:
            self.doubled_messages += 1
            self.queue.append(message)
        self._run_task(*message)

    def _deliver_all(self) -> None:
        while self.queue:
            self._run_task(*self.queue.pop(0))

    def _run_task(self, name: str, kwargs: dict[str, Any]) -> None:
        if name not in OUTSIDE:
            app.tasks[name].run(**kwargs)


@contextmanager
def open_world(seed: int) -> Any:
    """A market of a few nodes and owners at the beginning of its first slot."""
    app.loader.import_default_modules()
    zone = market.zone(horizon_slots=40)
    nodes = [
        SimulatedNode(market.node(zone, ask_micros=(4 + n) * market.CELL_MICROS))
        for n in range(NODES)
    ]
    owners = []
    for _ in range(OWNERS):
        made = builders.organisation(usd="40")
        owners.append(Owner(made, market.dataset(made, zone)))
    with meet_trouble() as trouble, pytest.MonkeyPatch.context() as patch:
        world = World(seed, random.Random(seed), trouble, zone, owners, nodes)
        trouble.act = world.act_meanwhile
        patch.setattr(clock, "now", lambda: world.now)
        patch.setattr(app, "send_task", world.send)
        yield world
