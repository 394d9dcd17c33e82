"""Worker processes on this machine, with a start-up delay and a price of their own.

Each machine is a process group and a folder: ``process.json`` names the process by
id and start time, so that a number used again by the system is never mistaken for it;
``state`` is the node's own state directory. What runs is found by these folders, so a
machine started behind the market's back is found too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from django.conf import settings

from marketplace.fleet.models import Tier
from marketplace.tiers.provisioning import BackendFault, ListedMachine, MachineOffer

#: Seconds a node has to hand over its checkpoints before it is killed.
GRACE_S = 30.0
#: What a node may see of our environment: nothing that opens the market.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS", "PYTHONPATH", "HF_HOME")
TOKEN_VARIABLE = "FINETENDER_JOIN_TOKEN"  # noqa: S105
#: Prices of table 2 of the Allpass paper; delays short enough to watch.
DEFAULT_OFFERS = (
    MachineOffer("serverless-local", Tier.SERVERLESS, 2_100_000, 1.0),
    MachineOffer("marketplace-local", Tier.MARKETPLACE, 380_000, 5.0),
    MachineOffer("conventional-local", Tier.CONVENTIONAL, 1_290_000, 60.0),
)

#: Machines this very process started; polled so that those that ended leave no zombie.
_started: dict[int, subprocess.Popen[bytes]] = {}


def list_local_offers() -> tuple[MachineOffer, ...]:
    """``TIERS_LOCAL_OFFERS`` of the settings, or the defaults."""
    return getattr(settings, "TIERS_LOCAL_OFFERS", DEFAULT_OFFERS)


class LocalBackend:
    """Processes on this machine.

    Parameters
    ----------
    command
        What runs as a machine; by default a node that joins and goes on to run.
    """

    def __init__(
        self,
        *,
        folder: Path,
        offers: Sequence[MachineOffer],
        command: Sequence[str] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.folder = folder
        self.offered = tuple(offers)
        self.command = None if command is None else tuple(command)
        self.grace_s = grace_s

    @property
    def name(self) -> str:
        return "local"

    def offers(self) -> tuple[MachineOffer, ...]:
        return self.offered

    def launch(self, *, machine_id: str, offer: str, market_url: str, join_secret: str) -> None:
        found = next((one for one in self.offered if one.name == offer), None)
        if found is None:
            raise BackendFault(f"The offer {offer!r} is gone.")
        home = self.folder / machine_id
        if (home / "process.json").exists():
            return
        home.mkdir(parents=True, exist_ok=True)
        own = self.command or _join_command(home, machine_id, market_url)
        # Sleeping in the machine's own process makes the delay part of it: a machine ended
        # while it boots never comes up.
        command = ["/bin/sh", "-c", 'sleep "$0" && exec "$@"', str(found.boot_s), *own]
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        with (home / "log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    env={**environment, TOKEN_VARIABLE: join_secret},
                    cwd=settings.BASE_DIR,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                shutil.rmtree(home, ignore_errors=True)
                raise BackendFault(f"The process could not be started: {error}.") from error
        _started[process.pid] = process
        started = psutil.Process(process.pid).create_time()
        _write_facts(
            home / "process.json",
            {"pid": process.pid, "started": started, "ready_at": time.time() + found.boot_s},
        )

    def machines(self) -> tuple[ListedMachine, ...]:
        found = []
        for home in sorted(self.folder.iterdir()) if self.folder.exists() else ():
            facts = _read_facts(home)
            if facts is not None and _find_process(facts) is not None:
                found.append(ListedMachine(home.name, is_ready=time.time() >= facts["ready_at"]))
        return tuple(found)

    def terminate(self, machine_id: str) -> None:
        home = self.folder / machine_id
        facts = _read_facts(home)
        if facts is None:
            return
        process = _find_process(facts)
        if process is None:
            shutil.rmtree(home, ignore_errors=True)
            return
        asked_at = facts.get("asked_at")
        if asked_at is None:
            _write_facts(home / "process.json", {**facts, "asked_at": time.time()})
            _send_signal(process, signal.SIGTERM)
        elif time.time() - asked_at >= self.grace_s:
            _send_signal(process, signal.SIGKILL)


def _join_command(home: Path, machine_id: str, market_url: str) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "workers", "join", "--run", "--quick", "--url", market_url),
        *("--name", machine_id, "--state-dir", str(home / "state"), "--device", "cpu"),
        *("--grace-s", str(GRACE_S / 2)),
        # All of them are this machine: measured once, and when nothing else ran.
        *("--measured", str(settings.DATA_DIR / "measured.json")),
    )


def _read_facts(home: Path) -> dict[str, float] | None:
    try:
        return json.loads((home / "process.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write_facts(path: Path, facts: dict[str, float]) -> None:
    # Whole or not at all: a torn file would hide a running machine.
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(facts))
    partial.replace(path)


def _find_process(facts: dict[str, float]) -> psutil.Process | None:
    """The machine's process if it still is that one and runs."""
    for pid, child in list(_started.items()):
        if child.poll() is not None:
            del _started[pid]
    try:
        process = psutil.Process(int(facts["pid"]))
        same = abs(process.create_time() - facts["started"]) < 0.01
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _send_signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        # A session of its own: its group is its id.
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
