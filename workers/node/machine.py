"""All GPUs of a machine: one node process for each, under one supervisor.

Each has a state directory, a name and credentials of its own below the machine's state directory,
sees one GPU only, and runs on the cores near that. ``machine.json`` says which there are. Where
several nodes share a GPU, to serve a zone each, they take turns (``turns``).
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from workers.node.credentials import NodeSettingsError, StateDir, load_credentials
from workers.node.gpus import Gpu, list_gpus, parse_core_list, read_near_cores, share_cores
from workers.node.process import EXIT_OK, EXIT_SETTINGS, lock_state_dir
from workers.node.turns import FINAL, FIRST_PAUSE_S, LONGEST_PAUSE_S, RAN_WELL_S, TurnKeeper
from workers.protocol.wire import dumps, loads

log = logging.getLogger(__name__)

_MACHINE = "machine.json"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One node of the machine."""

    name: str
    #: Of its state directory, below the machine's.
    folder: str
    device: str
    #: Of its GPU; empty for a CPU.
    model: str = ""
    #: Added to its process's environment.
    environment: dict[str, str] = field(default_factory=dict[str, str])
    #: It runs on these; none: the system decides.
    cores: tuple[int, ...] = ()
    #: Folder of the first node of its device, where it takes turns with that; empty: of its own.
    turns_with: str = ""

    @property
    def device_folder(self) -> str:
        """That of the first node of its device."""
        return self.turns_with or self.folder


@dataclass(frozen=True, slots=True)
class MachineNodes:
    members: tuple[Member, ...]


def plan_machine(*, name: str, gpus: str, device: str | None, group: int = 1) -> MachineNodes:
    """Which nodes a machine has.

    Parameters
    ----------
    gpus
        ``all``, how many, or which by number.
    device
        ``cpu`` shares the machine's cores among that many nodes without a GPU.
    group
        How many devices are one node.

    Raises
    ------
    NodeSettingsError
        It has fewer, they cannot be grouped so, or those of a group are not alike.
    """
    if not re.fullmatch(r"all|[1-9]\d*|(?=.*[-,])\d+(-\d+)?(,\d+(-\d+)?)*", gpus):
        raise NodeSettingsError(f"--gpus is a number, all, or numbers as in 0-3,6, not {gpus!r}.")
    if device == "cpu":
        if not gpus.isdecimal():
            raise NodeSettingsError("Say with --gpus how many nodes share the cores.")
        if group != 1:
            raise NodeSettingsError("--group is of GPUs; a CPU is a device of its own.")
        cores = share_cores([frozenset()] * int(gpus))
        return MachineNodes(
            tuple(
                Member(f"{name}-{index}", f"node{index}", "cpu", cores=own)
                for index, own in enumerate(cores)
            )
        )
    found = list_gpus()
    if gpus == "all":
        numbers = range(len(found))
    else:
        numbers = range(int(gpus)) if gpus.isdecimal() else sorted(parse_core_list(gpus))
    if not numbers or numbers[-1] >= len(found):
        raise NodeSettingsError(f"This machine has {len(found)} GPUs that can be seen, not {gpus}.")
    if group < 1 or len(numbers) % group:
        raise NodeSettingsError(f"{len(numbers)} GPUs cannot be divided into groups of {group}.")
    groups = [
        [found[at] for at in numbers[first : first + group]]
        for first in range(0, len(numbers), group)
    ]
    cores = share_cores([frozenset[int]().union(*map(read_near_cores, one)) for one in groups])
    return MachineNodes(
        tuple(
            _plan_member(name, index if group > 1 else numbers[index], gpus_of, own)
            for index, (gpus_of, own) in enumerate(zip(groups, cores, strict=True))
        )
    )


def _plan_member(name: str, number: int, gpus: Sequence[Gpu], cores: tuple[int, ...]) -> Member:
    models = {gpu.model for gpu in gpus}
    if len(models) > 1:
        raise NodeSettingsError(
            f"A group is of GPUs of one model, not of {' and '.join(sorted(models))}: the slowest "
            "and smallest would hold up the others. Choose others with --gpus."
        )
    kind = f"group{number}" if len(gpus) > 1 else f"gpu{number}"
    return Member(
        name=f"{name}-{kind}",
        folder=kind,
        device=",".join(f"cuda:{at}" for at in range(len(gpus))) if len(gpus) > 1 else "cuda",
        model=" ".join([f"{len(gpus)}x"] * (len(gpus) > 1) + [gpus[0].model]),
        environment={"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)},
        cores=cores,
    )


def load_machine(state: StateDir) -> MachineNodes | None:
    """What ``join_machine`` stored; ``None`` where the directory is a single node's."""
    path = state.path / _MACHINE
    if not path.exists():
        return None
    try:
        return loads(MachineNodes, path.read_text())
    except (OSError, ValueError) as error:
        raise NodeSettingsError(f"{path} is damaged ({error}). Join the market again.") from error


def find_neighbour(state: StateDir) -> StateDir | None:
    """Of a machine's node: another that has joined on its device, if there is one."""
    machine = load_machine(StateDir(state.path.parent))
    members = () if machine is None else machine.members
    own = next((one for one in members if one.folder == state.path.name), None)
    for other in members:
        there = StateDir(state.path.parent / other.folder)
        shares = own is not None and own != other and own.device_folder == other.device_folder
        if shares and there.credentials.exists():
            return there
    return None


def join_machine(options: argparse.Namespace, *, name: str) -> int:
    """Join each of the machine's nodes in turn: what one measures must not disturb another.

    A node that joined before is left as it is, so the same command brings in what is missing.

    Raises
    ------
    NodeSettingsError
        The machine has fewer GPUs, or its nodes run.
    """
    state = StateDir(options.state_dir)
    state.prepare()
    with lock_state_dir(state):
        if state.credentials.exists():
            raise NodeSettingsError(
                f"{state.path} is the state directory of a single node. Choose another --state-dir."
            )
        machine = load_machine(state) or plan_machine(
            name=name, gpus=options.gpus, device=options.device, group=options.group
        )
        save_machine(state, machine)
        # Further nodes of a GPU are for another zone's token.
        firsts = [member for member in machine.members if not member.turns_with]
        return join_members(options, state, firsts)


def save_machine(state: StateDir, machine: MachineNodes) -> None:
    """Store which nodes there are; whole or not at all."""
    partial = state.path / f"{_MACHINE}.{os.getpid()}"
    partial.write_text(dumps(machine))
    partial.replace(state.path / _MACHINE)


def join_members(options: argparse.Namespace, state: StateDir, members: Sequence[Member]) -> int:
    """Join those that have no credentials yet, one after the other."""
    failed = 0
    for member in members:
        if StateDir(state.path / member.folder).credentials.exists():
            print(f"{member.name} has joined already.", flush=True)
            continue
        done = subprocess.run(
            _build_join_command(options, state, member),
            env=_build_environment(member, token=options.token),
            check=False,
        )
        failed += done.returncode != EXIT_OK
    joined = len(members) - failed
    print(f"{joined} of {len(members)} nodes of this machine have joined.", flush=True)
    return EXIT_OK if joined else EXIT_SETTINGS


def _build_join_command(
    options: argparse.Namespace, state: StateDir, member: Member
) -> Sequence[str]:
    kind = "".join(letter if letter.isalnum() else "-" for letter in member.model) or "cpu"
    measured = options.measured or state.path / f"measured-{kind}.json"
    command = [
        *(sys.executable, "-m", "workers", "join", "--url", options.url, "--name", member.name),
        *("--state-dir", str(state.path / member.folder), "--device", member.device),
        # GPUs of one model are as fast: the first is measured for all of them.
        *("--measured", str(measured), "--log-level", options.log_level),
    ]
    if options.memory_gb is not None:
        command += ["--memory-gb", str(options.memory_gb)]
    return [*command, *(["--quick"] if options.quick else [])]


def _build_environment(member: Member, *, token: str | None = None) -> dict[str, str]:
    environment = {**os.environ, **member.environment}
    if token is not None:
        environment["FINETENDER_JOIN_TOKEN"] = token
    return environment


class Supervisor:
    """Keeps the machine's nodes running until it is asked to stop, or all have ended for good."""

    def __init__(
        self, machine: MachineNodes, *, root: Path, arguments: Sequence[str], grace_s: float
    ) -> None:
        #: Those that have joined; the others have nothing to run with.
        self._members = [
            member
            for member in machine.members
            if StateDir(root / member.folder).credentials.exists()
        ]
        self._root = root
        #: Of ``workers run``, beside the state directory.
        self._arguments = arguments
        self._grace_s = grace_s
        self._stopping = threading.Event()
        #: Set by the signal that asks for an update.
        self.update_asked = False
        self._wake = threading.Event()

    def run(self) -> int:
        """Run until stopped; the worst exit status of the nodes."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        threads = [
            threading.Thread(
                target=self._keep if len(sharing) == 1 else self._keep_turns,
                args=tuple(sharing),
                name=sharing[0].name,
            )
            for sharing in self._group_by_device()
        ]
        self._statuses: dict[str, int] = {}
        for thread in threads:
            thread.start()
        for thread in threads:
            # With a timeout, so that signals are handled meanwhile.
            while thread.is_alive():
                thread.join(0.5)
        return max(self._statuses.values(), default=EXIT_OK)

    def _keep(self, member: Member) -> None:
        """Start a node again whenever it ends other than for good."""
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            status = self._run_once(member)
            self._statuses[member.name] = status
            if status in FINAL:
                log.info("%s ended for good (status %s)", member.name, status)
                return
            pause = FIRST_PAUSE_S if time.monotonic() - began > RAN_WELL_S else pause
            log.warning("%s ended with status %s; again in %.0f s", member.name, status, pause)
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _group_by_device(self) -> list[list[Member]]:
        """The nodes of each device, of which one runs at a time."""
        devices: dict[str, list[Member]] = {}
        for member in self._members:
            devices.setdefault(member.device_folder, []).append(member)
        return list(devices.values())

    def _keep_turns(self, *members: Member) -> None:
        """Run the nodes of one device in turn."""
        by_folder = {self._root / member.folder: member for member in members}
        beats = [load_credentials(StateDir(one)).heartbeat_every_s for one in by_folder]
        keeper = TurnKeeper(
            list(by_folder),
            start=lambda folder: self._start(by_folder[folder]),
            stop=self._stop,
            stopping=self._stopping,
            grace_s=self._grace_s,
            every_s=min(beats),
        )
        self._statuses[members[0].name] = keeper.run()

    def _start(self, member: Member) -> subprocess.Popen[bytes]:
        folder = self._root / member.folder
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "workers", "run", "--state-dir", str(folder)),
                *self._arguments,
            ],
            env=_build_environment(member),
            preexec_fn=_Bound(member.cores),
        )

    def _run_once(self, member: Member) -> int:
        process = self._start(member)
        while process.poll() is None:
            if self._stopping.wait(0.2):
                return self._stop(process)
        return process.returncode

    def _stop(self, process: subprocess.Popen[bytes]) -> int:
        """Have a node hand over its jobs; one that does not end by then is killed."""
        process.terminate()
        try:
            status = process.wait(self._grace_s + 15.0)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        # One that had not begun to listen for it ends by the signal.
        return EXIT_OK if status < 0 else status

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.update_asked = self.update_asked or number == signal.SIGHUP
        self._stopping.set()


class _Bound:
    """Runs in a new process before its program: it ends with the supervisor and has its cores."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    def __call__(self) -> None:
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if self._cores:
            os.sched_setaffinity(0, self._cores)
