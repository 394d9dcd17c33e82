"""Two nodes of two zones take turns on one device, as real processes under one supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from marketplace.embedded.demo.api_client import DemoFailed, place_bid
from marketplace.embedded.demo.first_sale import TRAINING
from tests.conftest import Market
from tests.faults.steps import until
from tests.faults.test_node_in_market import events_of
from workers.node.join import save_facts
from workers.protocol.node_facts import NodeFacts

pytestmark = [pytest.mark.faults, pytest.mark.nightly, pytest.mark.timeout(1500)]

DAY, NIGHT = "turns-day", "turns-night"
#: Two zones as the house's own, and a join token for each; the first is open now, the second later.
OPEN = """
import json
from datetime import timedelta
from marketplace.common import clock
from marketplace.common.ids import new_id
from marketplace.fleet.models import Provider, Zone
from marketplace.fleet.services import ListingTerms, create_join_token
now, secrets = clock.now(), []
for name, begin, end in (("turns-day", -5, 40), ("turns-night", 50, 70)):
    zone = Zone.objects.get(name={zone!r})
    zone.pk, zone.name, zone._state.adding = new_id("zone"), name, True
    # On a busy machine two heartbeats may come late.
    zone.heartbeat_every_s = 6.0
    zone.save(force_insert=True)
    hours = [(now + timedelta(minutes=minutes)).time() for minutes in (begin, end)]
    terms = ListingTerms(10_000, opens=hours[0], closes=hours[1])
    secrets.append(create_join_token(
        zone=zone, provider=Provider.objects.order_by("created_at").first(),
        created_by=None, terms=terms, now=now,
    )[1])
print(json.dumps(secrets))
"""
#: The first one's hours end as the slots that are sold of it do, the second one's begin then.
CHANGE = """
from dataclasses import asdict
from datetime import timedelta
from marketplace.auction.models import Reservation
from marketplace.auction.node_hours import change_sale_hours
from marketplace.common import clock
from marketplace.fleet.models import Node
from marketplace.fleet.sale_hours import SaleHours
from marketplace.fleet.selectors import slot_ends_at
from marketplace.fleet.shared_devices import find_changeover_s
now = clock.now()
day, night = (Node.objects.get(zone__name=name) for name in ("turns-day", "turns-night"))
held = Reservation.objects.filter(node=day, released_at=None).order_by("-slot").first()
over = slot_ends_at(day.zone, held.slot)
gap = timedelta(seconds=find_changeover_s(day, night) + 1)
day = change_sale_hours(node=day, change=asdict(SaleHours(day.sale_opens, over.time())), now=now)
begins = (over + gap).time()
change_sale_hours(node=night, change=asdict(SaleHours(begins, night.sale_closes)), now=now)
"""
STATUSES = """
import json
from marketplace.common import clock
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import find_present_status
nodes = Node.objects.filter(zone__name__startswith="turns-")
print(json.dumps({n.zone.name: [n.status, find_present_status(n, clock.now())] for n in nodes}))
"""
RETIRE = """
from marketplace.common import clock
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.services import retire_node
for node in Node.objects.filter(zone__name__startswith="turns-"):
    retire_node(node=node, now=clock.now())
Zone.objects.filter(name__startswith="turns-").update(is_open=False)
"""


class MachineOfTwo:
    """One device on which two nodes have joined, and the processes that were seen on it."""

    def __init__(self, market: Market, folder: Path, facts: NodeFacts) -> None:
        self._market = market
        self._folder = folder
        save_facts(folder / "measured.json", facts)
        self._log = (folder / "log").open("w")
        self.process: subprocess.Popen[bytes] | None = None
        #: Folders of nodes in the order in which their processes were seen.
        self.seen: list[str] = []

    def join(self, secret: str, *more: str) -> None:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "workers", "join", "--url", self._market.url),
                *("--state-dir", self._folder / "state", "--device", "cpu", *more),
                *("--measured", self._folder / "measured.json"),
            ],
            env=os.environ | {"FINETENDER_JOIN_TOKEN": secret},
            stdout=self._log,
            stderr=self._log,
            check=False,
        )
        assert done.returncode == 0, self.read_log()

    def start(self) -> None:
        command = [sys.executable, "-m", "workers", "run", "--state-dir", self._folder / "state"]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def look(self) -> list[psutil.Process]:
        """The nodes' processes; one at most at any time."""
        assert self.process is not None
        running = []
        for child in psutil.Process(self.process.pid).children():
            # One that has just ended has no command line.
            words = []
            with suppress(psutil.NoSuchProcess):
                words = child.cmdline()
            if "--state-dir" in words:
                folder = Path(words[words.index("--state-dir") + 1]).name
                running.append(child)
                if self.seen[-1:] != [folder]:
                    self.seen.append(folder)
        assert len(running) <= 1
        return running

    def read_log(self) -> str:
        return (self._folder / "log").read_text()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(90)
        self._log.close()
        print((self._folder / "log").read_text())


def test_two_zones_take_turns_on_a_device_and_lose_nothing(
    market: Market, known_facts: NodeFacts, api, tmp_path: Path
) -> None:
    machine = MachineOfTwo(market, tmp_path, replace(known_facts, load_s=4.0))
    day, night = json.loads(market.shell.run(OPEN.format(zone=market.zone)))
    machine.join(day, "--name", "turns")
    machine.join(night, "--also")
    machine.start()

    def wait_for(condition, what: str, within_s: float = 300.0) -> None:
        def is_there() -> bool:
            machine.look()
            return condition()

        until(is_there, what=what, within_s=within_s)

    def statuses() -> dict[str, str]:
        return {name: row[0] for name, row in json.loads(market.shell.run(STATUSES)).items()}

    def buy(zone: str) -> str:
        work = {"training": TRAINING | {"epochs": 1}, "within_s": 600}
        bought: list[str] = []

        def has_bought() -> bool:
            # A quote goes by what the lane last saw of the fleet.
            with suppress(DemoFailed):
                bid = place_bid(api, zone, name=zone, **work, say=lambda _: None)
                bought.append(bid["job_id"])
            return bool(bought)

        wait_for(has_bought, f"a job of {zone} is sold", within_s=30)
        return bought[0]

    def is_done(job_id: str) -> bool:
        job = api.get(f"/api/jobs/{job_id}").json()
        assert job["status"] not in ("failed", "cancelled"), events_of(api, job_id)
        return job["status"] == "succeeded"

    try:
        wait_for(lambda: statuses() == {DAY: "online", NIGHT: "resting"}, "the first one serves")
        first = buy(DAY)
        wait_for(lambda: bool(events_of(api, first)), "the first one's job is there")
        market.shell.run(CHANGE)
        # Sold while its node rests.
        second = buy(NIGHT)
        assert statuses()[NIGHT] == "resting"
        wait_for(lambda: is_done(first), "the first one's job is done")
        wait_for(lambda: statuses() == {DAY: "resting", NIGHT: "online"}, "the second one serves")
        wait_for(lambda: is_done(second), "the second one's job is done")
        assert machine.seen == ["node0", "node0-2"]
        for job_id in (first, second):
            # Nothing was lost, and no machine was taken for gone while a node rested.
            kinds = [event["kind"] for event in events_of(api, job_id)]
            assert "node_lost" not in kinds
            assert kinds.count("succeeded") == 1
        # The machine dies: the one at work is lost, and the one that rests is not heard.
        assert machine.process is not None
        killed = machine.look()
        machine.process.send_signal(signal.SIGKILL)
        for process in killed:
            process.kill()
        machine.process.wait(30)
        until(
            lambda: statuses() == {DAY: "offline", NIGHT: "offline"},
            what="the market notices that the machine is gone",
        )
        # It is back: the one whose turn it is serves, the other one rests.
        began = time.monotonic()
        machine.start()
        wait_for(lambda: statuses() == {DAY: "resting", NIGHT: "online"}, "the machine is back")
        assert time.monotonic() - began < 120
    finally:
        machine.end()
        market.shell.run(RETIRE)
