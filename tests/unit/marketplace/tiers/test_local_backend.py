"""The local backend with real processes, beyond what every backend promises."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from marketplace.fleet.models import Tier
from marketplace.tiers.provisioning import BackendFault, MachineOffer, get_backend
from marketplace.tiers.provisioning.local import LocalBackend
from tests.waiting import until

NOW_OFFER = MachineOffer("now", Tier.SERVERLESS, 2_100_000, 0.0)
SLOW_OFFER = MachineOffer("slow", Tier.MARKETPLACE, 740_000, 600.0)
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(600)",
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., LocalBackend]]:
    made: list[LocalBackend] = []

    def build(command: tuple[str, ...] = SLEEPS, *, grace_s: float = 30.0) -> LocalBackend:
        made.append(
            LocalBackend(
                folder=tmp_path / "machines",
                offers=(NOW_OFFER, SLOW_OFFER),
                command=command,
                grace_s=grace_s,
            )
        )
        return made[-1]

    yield build
    for backend in made:
        for one in backend.machines():
            facts = json.loads((backend.folder / one.machine_id / "process.json").read_text())
            os.killpg(int(facts["pid"]), signal.SIGKILL)
        # Listing takes note of those that ended.
        until(lambda backend=backend: backend.machines() == (), what="all are killed")


def launch(backend: LocalBackend, machine_id: str = "mach_1", *, offer: str = "now") -> None:
    backend.launch(
        machine_id=machine_id, offer=offer, market_url="http://market", join_secret="one-time"
    )


def process_of(backend: LocalBackend, machine_id: str = "mach_1") -> psutil.Process:
    facts = json.loads((backend.folder / machine_id / "process.json").read_text())
    return psutil.Process(int(facts["pid"]))


def test_a_machine_ended_while_it_boots_never_comes_up(make: Callable[..., LocalBackend]) -> None:
    backend = make()
    launch(backend, offer="slow")
    assert [one.is_ready for one in backend.machines()] == [False]
    backend.terminate("mach_1")
    until(lambda: backend.machines() == (), what="the boot is given up")
    assert (backend.folder / "mach_1" / "log").read_text() == ""


def test_a_machine_killed_by_others_is_no_longer_listed(make: Callable[..., LocalBackend]) -> None:
    backend = make()
    launch(backend)
    process_of(backend).kill()
    until(lambda: backend.machines() == (), what="the list notices")
    backend.terminate("mach_1")
    assert not (backend.folder / "mach_1").exists()


def test_a_machine_that_will_not_stop_is_killed_after_its_grace(
    make: Callable[..., LocalBackend],
) -> None:
    backend = make(STUBBORN, grace_s=0.2)
    launch(backend)
    log = backend.folder / "mach_1" / "log"
    until(lambda: log.exists() and "ready" in log.read_text(), what="it ignores the signal")

    def gone() -> bool:
        backend.terminate("mach_1")
        return backend.machines() == ()

    until(gone, what="it is killed")


def test_a_number_used_again_by_another_process_is_not_our_machine(
    make: Callable[..., LocalBackend],
) -> None:
    backend = make()
    launch(backend)
    ours = process_of(backend)
    path = backend.folder / "mach_1" / "process.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "pid": os.getpid()}))
    assert backend.machines() == ()
    backend.terminate("mach_1")
    assert psutil.pid_exists(os.getpid())
    ours.kill()


def test_an_unknown_backend_is_named_with_those_there_are() -> None:
    with pytest.raises(BackendFault, match="No backend 'moon'; there are: local"):
        get_backend("moon")
    offered = {offer.tier for offer in get_backend("local").offers()}
    assert offered == {Tier.SERVERLESS, Tier.MARKETPLACE, Tier.CONVENTIONAL}
