"""What every backend promises: real processes, and both clouds over fakes of their clients."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from marketplace.fleet.models import Tier
from marketplace.tiers.provisioning import Backend, BackendFault, MachineOffer
from marketplace.tiers.provisioning.local import LocalBackend
from marketplace.tiers.provisioning.modal import ModalBackend, parse_modal_offers
from marketplace.tiers.provisioning.skypilot import SkyPilotBackend
from tests.unit.marketplace.tiers.clouds import ModalCloud, SkyServer

IMAGE = "registry.example/finetender-worker:1"
MARKET_URL = "https://market.example"
TELLS = (
    sys.executable,
    "-c",
    "import json, os, sys, time; json.dump(dict(os.environ), sys.stdout); "
    "sys.stdout.flush(); time.sleep(600)",
)


@dataclass(frozen=True)
class Given:
    """What a machine was given to start with, beyond what its system has."""

    environment: dict[str, str]
    command: tuple[str, ...]


class Ground(Protocol):
    """A backend's world, seen from outside."""

    def backend(self, *, market: str = "ours") -> Backend: ...

    def settle(self) -> None:
        """Let what was asked for happen."""
        ...

    def given(self, machine_id: str) -> Given: ...


@dataclass
class LocalGround:
    folder: Path

    def backend(self, *, market: str = "ours") -> Backend:
        return LocalBackend(
            folder=self.folder / market,
            offers=(MachineOffer("now", Tier.SERVERLESS, 2_100_000, 0.0),),
            command=TELLS,
        )

    def settle(self) -> None:
        # A process is there when ``launch`` returns; one being ended needs a moment.
        ends_at = time.monotonic() + 20.0
        while set(self._asked_to_end()) & set(psutil.pids()):
            # Listing takes note of those that ended.
            self.backend().machines()
            assert time.monotonic() < ends_at
            time.sleep(0.02)

    def _asked_to_end(self) -> list[int]:
        every = [json.loads(path.read_text()) for path in self.folder.glob("*/*/process.json")]
        return [int(facts["pid"]) for facts in every if "asked_at" in facts]

    def given(self, machine_id: str) -> Given:
        log = self.folder / "ours" / machine_id / "log"
        ends_at = time.monotonic() + 20.0
        while not (log.exists() and log.read_text().endswith("}")):
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        facts = json.loads((log.parent / "process.json").read_text())
        command = psutil.Process(int(facts["pid"])).cmdline()
        return Given(json.loads(log.read_text()), tuple(command))

    def close(self) -> None:
        for path in self.folder.glob("*/*/process.json"):
            pid = int(json.loads(path.read_text())["pid"])
            if psutil.pid_exists(pid):
                os.killpg(pid, signal.SIGKILL)
        for market in self.folder.iterdir():
            while self.backend(market=market.name).machines():
                time.sleep(0.02)


@dataclass
class SkyGround:
    server: SkyServer = field(default_factory=SkyServer)

    def backend(self, *, market: str = "ours") -> SkyPilotBackend:
        return SkyPilotBackend(
            sky=self.server.sky, sdk=self.server, tag=market, image=IMAGE, gpus=("A100", "H100")
        )

    def settle(self) -> None:
        self.server.provision()

    def given(self, machine_id: str) -> Given:
        task = self.server.tasks[f"ft-ours-{machine_id}"]
        assert task.secrets is not None
        assert task.run is not None
        return Given(task.secrets, tuple(shlex.split(task.run)))


@dataclass
class ModalGround:
    cloud: ModalCloud = field(default_factory=ModalCloud)

    def backend(self, *, market: str = "ours") -> ModalBackend:
        return ModalBackend(
            modal=self.cloud.module,
            tag=market,
            image=IMAGE,
            offered=parse_modal_offers(["A100=2.10"]),
        )

    def settle(self) -> None:
        """Modal does what it is asked at once."""

    def given(self, machine_id: str) -> Given:
        sandbox = next(one for one in self.cloud.sandboxes if one.terms["name"] == machine_id)
        environment = {key: value for one in sandbox.terms["secrets"] for key, value in one.items()}
        return Given(environment, sandbox.command)


@pytest.fixture(params=["local", "skypilot", "modal"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    if request.param == "skypilot":
        yield SkyGround()
    elif request.param == "modal":
        yield ModalGround()
    else:
        local = LocalGround(tmp_path)
        yield local
        local.close()


@pytest.fixture(params=["skypilot", "modal"])
def cloud(request: pytest.FixtureRequest) -> SkyGround | ModalGround:
    return SkyGround() if request.param == "skypilot" else ModalGround()


def launch(
    backend: Backend, machine_id: str = "mach_1", *, secret: str = "one-time", url: str = MARKET_URL
) -> None:
    offer = backend.offers()[0].name
    backend.launch(machine_id=machine_id, offer=offer, market_url=url, join_secret=secret)


def listed(backend: Backend) -> list[str]:
    return [one.machine_id for one in backend.machines()]


def test_offers_have_distinct_names_that_fit_a_row_a_tier_and_a_price(ground: Ground) -> None:
    offers = ground.backend().offers()
    assert offers
    assert len({offer.name for offer in offers}) == len(offers)
    for offer in offers:
        assert 0 < len(offer.name) <= 64
        assert offer.tier in Tier.values
        assert isinstance(offer.price_micros_per_h, int)
        assert offer.price_micros_per_h > 0


def test_a_machine_is_listed_from_launch_until_it_has_ended(ground: Ground) -> None:
    backend = ground.backend()
    assert backend.machines() == ()
    launch(backend)
    assert listed(backend) == ["mach_1"]
    ground.settle()
    assert [(one.machine_id, one.is_ready) for one in backend.machines()] == [("mach_1", True)]
    backend.terminate("mach_1")
    ground.settle()
    assert backend.machines() == ()
    backend.terminate("mach_1")
    ground.settle()
    assert backend.machines() == ()


def test_ending_what_never_was_is_no_error(ground: Ground) -> None:
    ground.backend().terminate("mach_never")
    assert ground.backend().machines() == ()


def test_launching_twice_starts_one_with_the_first_token(ground: Ground) -> None:
    launch(ground.backend())
    launch(ground.backend(), secret="another")
    assert listed(ground.backend()) == ["mach_1"]
    ground.settle()
    launch(ground.backend(), secret="another")
    assert ground.given("mach_1").environment["FINETENDER_JOIN_TOKEN"] == "one-time"


def test_an_offer_that_is_gone_starts_nothing(ground: Ground) -> None:
    backend = ground.backend()
    with pytest.raises(BackendFault, match="offer 'none' is gone"):
        backend.launch(
            machine_id="mach_1", offer="none", market_url=MARKET_URL, join_secret="one-time"
        )
    assert backend.machines() == ()


def test_a_machine_is_given_its_token_and_nothing_that_opens_the_house(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "STRIPE_SECRET_KEY"):
        monkeypatch.setenv(name, "the house's")
    launch(ground.backend())
    given = ground.given("mach_1")
    assert given.environment["FINETENDER_JOIN_TOKEN"] == "one-time"
    assert "the house's" not in given.environment.values()
    # Command lines are shown to others.
    assert not any("one-time" in word for word in given.command)


def test_another_process_of_the_market_finds_a_machine_and_ends_it(ground: Ground) -> None:
    launch(ground.backend())
    ground.settle()
    assert listed(ground.backend()) == ["mach_1"]
    ground.backend().terminate("mach_1")
    ground.settle()
    assert ground.backend().machines() == ()


def test_machines_of_another_market_are_neither_listed_nor_ended(ground: Ground) -> None:
    launch(ground.backend(market="theirs"))
    ground.settle()
    assert ground.backend().machines() == ()
    ground.backend().terminate("mach_1")
    ground.settle()
    assert listed(ground.backend(market="theirs")) == ["mach_1"]


def test_a_machine_elsewhere_runs_a_node_of_the_market_alone(
    cloud: SkyGround | ModalGround,
) -> None:
    launch(cloud.backend())
    given = cloud.given("mach_1")
    assert set(given.environment) == {"FINETENDER_JOIN_TOKEN"}
    start = given.command.index("python")
    assert given.command[start : start + 5] == ("python", "-m", "workers", "join", "--run")
    assert given.command[given.command.index("--url") + 1] == MARKET_URL
    assert given.command[given.command.index("--name") + 1] == "mach_1"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost", "http://[::1]:80", "http://a.localhost"]
)
def test_no_machine_is_rented_elsewhere_for_a_market_it_cannot_reach(
    cloud: SkyGround | ModalGround, url: str
) -> None:
    with pytest.raises(BackendFault, match="set PUBLIC_URL to a public address"):
        launch(cloud.backend(), url=url)
    assert cloud.backend().machines() == ()


def test_no_machine_is_rented_elsewhere_without_an_image(cloud: SkyGround | ModalGround) -> None:
    backend = cloud.backend()
    object.__setattr__(backend, "image", "")
    with pytest.raises(BackendFault, match="Set TIERS_WORKER_IMAGE"):
        launch(backend)
    assert backend.machines() == ()


def test_a_cloud_that_is_away_is_a_fault_of_the_backend_and_nothing_else(
    cloud: SkyGround | ModalGround,
) -> None:
    backend = cloud.backend()
    offer = backend.offers()[0].name
    away = cloud.server if isinstance(cloud, SkyGround) else cloud.cloud
    away.is_away = True
    with pytest.raises(BackendFault, match="Could not connect"):
        backend.launch(
            machine_id="mach_1", offer=offer, market_url=MARKET_URL, join_secret="one-time"
        )
    with pytest.raises(BackendFault, match="Could not connect"):
        backend.machines()
    with pytest.raises(BackendFault, match="Could not connect"):
        backend.terminate("mach_1")
    away.is_away = False
    assert backend.machines() == ()
