"""The loop: whose turn it is, what they do, and what of it a fault takes away."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, connection

from marketplace.auction.models import LogEntry
from marketplace.common import clock
from marketplace.common.errors import MarketFault, UserError
from marketplace.common.outbound import FetchFailed
from marketplace.config.celery import app
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Job
from marketplace.jobs.services import LeaseLost
from marketplace.webhooks import delivery
from marketplace.webhooks.outbox import DELIVER, EVENT_TYPES
from marketplace.webhooks.services import create_endpoint
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.world import invariants
from tests.world.actors import Actor, Turn
from tests.world.faults import (
    FEWER_FAULTS,
    Fault,
    ProcessDied,
    Trouble,
    bury_process,
    leave_task,
    meet_trouble,
)
from tests.world.owners import CardOwner, Owner
from tests.world.simulated_nodes import SimulatedNode

#: Of the steps, the share in which a fault may strike; the second where few kinds do, and where one
#: task is looked at.
FAULTS_SHARE, CLOSE_FAULTS_SHARE = 0.3, 0.8
#: A statement within so many is the one that a fault strikes at.
STATEMENTS, CLOSE_STATEMENTS = 40, 24
#: Steps between two looks at what takes longer to look at.
VERIFY_EVERY = 25
OWNERS, NODES = 3, 3
#: Of the turns, the share of a task that is looked at closely; tasks that are told their zone.
OFTEN_SHARE = 0.4
OF_A_ZONE = ("auction.prices_solve", "auction.decide_pending_bids")
#: What calls other companies' servers; the world has none of them.
OUTSIDE = ("payments.gateway_compare", "tiers.reconcile")

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
    #: The most work units a slot that each node was on sale with.
    capacities: dict[str, float] = field(default_factory=dict)
    #: A task that is done much more often than it would be.
    often: str = ""
    #: Who else there is, and what goes wrong.
    actors: list[Actor] = field(default_factory=list)
    faults: Sequence[Fault] = FEWER_FAULTS
    #: Whether hours pass now and then in which nobody does anything.
    has_nights: bool = False
    #: What is being done; a message that the broker doubled does it once more meanwhile.
    acting: Action = lambda: None
    #: What was noted of each message when it was delivered.
    delivered: dict[str, list[Any]] = field(default_factory=dict)

    def run(self, steps: int, *, days: float = 0.0) -> None:
        """Take so many steps, or more until so many days have passed."""
        self.has_nights, ends_at = days > 0, NOW + timedelta(days=days)
        for number in count():
            if number >= steps and self.now >= ends_at:
                break
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
        self.trouble.fault, self.trouble.files_left = None, 0
        try:
            for owner in self.owners:
                self._do(partial(owner.ask_again, self), None)
            for _ in range(120):
                if invariants.is_at_rest(self):
                    break
                self.now += timedelta(seconds=market.SLOT_S / 2)
                for node in self.nodes:
                    node.silent_until = self.now
                    self._do(partial(node.beat, self), None)
                    for _ in range(4):
                        self._do(partial(node.work, self), None)
                for actor in self.actors:
                    self._do(actor.settle, None)
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

    def receive_message(self, _url: str, **_: Any) -> None:
        """Answer as the owners' own server does: at most moments."""
        if int(10 * self.now.timestamp()) % 10 < (5 if self.often else 3):
            raise FetchFailed("The address does not answer.")

    def count(self) -> str:
        """What happened, in figures."""
        bids = sum(len(owner.answers) for owner in self.owners)
        struck = ", ".join(f"{fault}: {n}" for fault, n in sorted(self.trouble.struck.items()))
        others = "".join(f"; {actor.describe()}" for actor in self.actors)
        return (
            f"{bids} bids, {Job.objects.count()} jobs, {LogEntry.objects.count()} entries of the "
            f"log, {len(self.delivered)} webhooks; {struck}; messages lost {self.lost_messages}, "
            f"doubled {self.doubled_messages}; jumps of the clock {self.jumps}{others}"
        )

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
        elif draw < 0.06 and self.has_nights:
            self.now += timedelta(hours=self.rng.uniform(1, 6))

    def _choose(self) -> tuple[str, Action]:
        if self.often and self.rng.random() < OFTEN_SHARE:
            kwargs = {"zone_id": self.zone.pk} if self.often in OF_A_ZONE else {}
            return f"the task {self.often}", partial(self._run_task, self.often, kwargs)
        owner, node = self.rng.choice(self.owners), self.rng.choice(self.nodes)
        beats = [row["task"] for row in settings.CELERY_BEAT_SCHEDULE.values()]
        task = self.rng.choice([name for name in beats if name not in OUTSIDE])
        kinds: list[Turn] = [
            (14, "an owner bids", lambda: owner.bid(self)),
            (4, "an owner asks again", lambda: owner.ask_again(self)),
            (3, "an owner cancels", lambda: owner.cancel(self)),
            (12, "a node's heartbeat", lambda: node.beat(self)),
            (30, "a node works", lambda: node.work(self)),
            (2, "a node falls silent", lambda: node.fall_silent(self)),
            (3, "a node says an old thing again", lambda: node.repeat(self)),
            (12, "slots are dispatched", lambda: self._run_task("jobs.slots_dispatch", {})),
            (8, "leases are swept", lambda: self._run_task("jobs.leases_sweep", {})),
            (8, "the lane's sweep", self._sweep_lane),
            (4, "rates are asked for", lambda: self._run_task("auction.rates_sweep", {})),
            (6, "jobs are settled", lambda: self._run_task("auction.settle_finished", {})),
            (12, f"the beat's {task}", lambda: self._run_task(task, {})),
            (4, "events are sent", lambda: self._run_task(DELIVER, {})),
            (24, "a message is delivered", self._deliver),
            *(turn for actor in self.actors for turn in actor.list_turns()),
        ]
        _, name, action = self.rng.choices(kinds, [kind[0] for kind in kinds])[0]
        return name, action

    def _choose_fault(self) -> Fault | None:
        is_close = self.often or len(self.faults) < len(FEWER_FAULTS)
        if self.rng.random() >= (CLOSE_FAULTS_SHARE if is_close else FAULTS_SHARE):
            return None
        # Most acts are short.
        self.trouble.statements_left = self.rng.randint(1, self.rng.choice([8, 16, STATEMENTS]))
        if self.often:
            self.trouble.statements_left = self.rng.randint(1, CLOSE_STATEMENTS)
            return Fault.ANOTHER_ACTS
        fault = self.rng.choice([*self.faults, Fault.ANOTHER_ACTS])
        if fault == Fault.DISK_FULL:
            self.trouble.files_left = self.rng.randint(1, 3)
            return None
        return fault

    def _do(self, action: Action, fault: Fault | None) -> None:
        self.trouble.fault, self.acting = fault, action
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
        twin, lane = ("the same once more", self.acting), ("the lane's sweep", self._sweep_lane)
        name, action = self.rng.choice([twin, lane] if self.often else [twin, lane, self._choose()])
        if self.often or self.rng.random() < 0.5:
            # Longer than a slot, or than some leases last.
            self.now += timedelta(seconds=self.rng.uniform(1, 200))
        self.told.append(f"    meanwhile {name}")
        broken: list[BaseException] = []

        def run() -> None:
            try:
                with connection.cursor() as cursor:
                    # The one that is held up may have what this one needs.
                    cursor.execute("SET lock_timeout = '200ms'")
                action()
            except (UserError, LeaseLost, DatabaseError, OSError):
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

    def _sweep_lane(self) -> None:
        self._run_task("auction.sweep", {})

    def _deliver(self) -> None:
        if not self.queue:
            return
        message = self.queue.pop(self.rng.randrange(len(self.queue)))
        self.acting = partial(self._run_task, *message)
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

    def run_task(self, name: str, **kwargs: Any) -> None:
        self._run_task(name, kwargs)

    def _run_task(self, name: str, kwargs: dict[str, Any]) -> None:
        if name not in OUTSIDE:
            app.tasks[name].run(**kwargs)


def make_owner(zone: Zone, kind: type[Owner], *, usd: str = "40") -> Owner:
    made = builders.organisation(usd=usd)
    create_endpoint(
        organisation=made,
        created_by=builders.owner_of(made),
        url="https://8.8.8.8/hook",
        events=[name for name in EVENT_TYPES if name.startswith(("bid.", "job."))],
        now=NOW,
    )
    return kind(made, market.dataset(made, zone), market.dataset(made, zone, rows=20))


@contextmanager
def open_world(
    seed: int,
    *,
    often: str = "",
    actors: Sequence[type[Actor]] = (),
    faults: Sequence[Fault] = FEWER_FAULTS,
) -> Iterator[World]:
    """A market of a few nodes and owners at the beginning of its first slot."""
    app.loader.import_default_modules()
    zone = market.zone(horizon_slots=40)
    nodes = [
        SimulatedNode(market.node(zone, ask_micros=(4 + n) * market.CELL_MICROS))
        for n in range(NODES)
    ]
    owners = [make_owner(zone, CardOwner if n == 0 else Owner) for n in range(OWNERS)]
    random.seed(seed)
    with meet_trouble() as trouble, pytest.MonkeyPatch.context() as patch:
        world = World(seed, random.Random(seed), trouble, zone, owners, nodes)
        world.often, world.faults = often, faults
        trouble.act = world.act_meanwhile
        patch.setattr(clock, "now", lambda: world.now)
        patch.setattr(app, "send_task", world.send)
        patch.setattr(delivery, "ask_stranger", world.receive_message)
        world.actors = [actor(world, patch) for actor in actors]
        yield world
