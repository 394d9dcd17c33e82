"""Nodes of one device: one process at most, whose turn the market says it is."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workers.node import machine, turns
from workers.node.credentials import (
    Credentials,
    NodeSettingsError,
    StateDir,
    load_credentials,
    save_credentials,
)
from workers.node.join import has_joined, save_facts
from workers.node.machine import MachineNodes, Member, Supervisor, load_machine, save_machine
from workers.node.neighbours import adopt_single_node
from workers.node.process import EXIT_OK, EXIT_SENT_AWAY, lock_state_dir
from workers.node.turns import SentAwayError, TurnKeeper, ask_turn
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement
from workers.protocol.turns import DeviceTurn

SERVES, RESTS = DeviceTurn(serves=True), DeviceTurn(serves=False, rests_until=1.0)


class FakeProcess:
    """Ends when it is asked to, with the status that it is given."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.ends_when_asked = True
        self.was_killed = False

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        if self.ends_when_asked:
            self.returncode = 0

    def kill(self) -> None:
        self.returncode, self.was_killed = -9, True


class Device:
    """A keeper of two nodes whose market and processes are written down."""

    def __init__(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(turns, "_LOOK_EVERY_S", 0.001)
        monkeypatch.setattr(turns, "FIRST_PAUSE_S", 0.001)
        self.day, self.night = tmp_path / "day", tmp_path / "night"
        for folder in (self.day, self.night):
            folder.mkdir()
        self.stopping = threading.Event()
        #: What the market says, one round after the other; then the supervisor is stopped.
        self.rounds: list[dict[Path, DeviceTurn | Exception | None]] = []
        self.asked: list[tuple[str, bool]] = []
        self.started: list[tuple[str, FakeProcess]] = []
        self.keeper = TurnKeeper(
            [self.day, self.night],
            start=self._start,
            stop=lambda process: process.terminate() or process.returncode,
            stopping=self.stopping,
            grace_s=0.0,
            every_s=0.01,
            ask=self._ask,
        )

    def _start(self, folder: Path) -> FakeProcess:
        assert all(process.returncode is not None for _, process in self.started)
        self.started.append((folder.name, FakeProcess()))
        return self.started[-1][1]

    def _ask(self, folder: Path, *, is_up: bool) -> DeviceTurn | None:
        self.asked.append((folder.name, is_up))
        said = self.rounds[0].get(folder)
        if folder == self.night or len(self.rounds[0]) == 1:
            if len(self.rounds) == 1:
                self.stopping.set()
            else:
                self.rounds.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def names(self) -> list[str]:
        return [name for name, _ in self.started]


@pytest.fixture
def device(tmp_path, monkeypatch) -> Device:
    return Device(tmp_path, monkeypatch)


def test_the_one_whose_turn_is_over_ends_before_the_other_starts(device):
    day = {device.day: SERVES, device.night: RESTS}
    night = {device.day: RESTS, device.night: SERVES}
    device.rounds = [day, day, night, night, night]
    assert device.keeper.run() == EXIT_OK
    assert device.names() == ["day", "night"]
    assert [process.returncode for _, process in device.started] == [0, 0]
    # Both are asked for, with what runs; the one that ended rests from the next question on.
    assert device.asked[:6] == [
        *[("day", False), ("night", False)],
        *[("day", True), ("night", False)] * 2,
    ]
    assert device.asked[6:8] == [("day", False), ("night", False)]


def test_a_market_that_is_silent_changes_nothing(device):
    day = {device.day: SERVES, device.night: RESTS}
    silent = {device.day: None, device.night: None}
    device.rounds = [silent, silent, day, silent, silent]
    assert device.keeper.run() == EXIT_OK
    assert device.names() == ["day"]


def test_one_that_does_not_hand_over_in_time_is_killed(device, monkeypatch):
    monkeypatch.setattr(turns, "_KILL_AFTER_S", 0.0)
    start = device.keeper._start

    def start_deaf(folder: Path) -> FakeProcess:
        process = start(folder)
        process.ends_when_asked = folder == device.night
        return process

    device.keeper._start = start_deaf
    night = {device.day: RESTS, device.night: SERVES}
    device.rounds = [{device.day: SERVES, device.night: RESTS}, night, night, night, night]
    device.keeper.run()
    assert device.names() == ["day", "night"]
    assert device.started[0][1].was_killed


def test_one_whose_credentials_are_revoked_is_left_alone_and_the_other_goes_on(device):
    revoked = SentAwayError("revoked")
    StateDir(device.day).prepare()
    both = {device.day: RESTS, device.night: SERVES}
    alone = {device.night: SERVES}
    device.rounds = [both, {device.day: revoked, device.night: SERVES}, alone, alone]
    assert device.keeper.run() == EXIT_SENT_AWAY
    assert list(device.day.iterdir()) == []
    assert device.names() == ["night"]
    assert [name for name, _ in device.asked] == ["day", "night", "day", "night", "night", "night"]


@pytest.mark.parametrize("every_s", [0.01, 0.0])
def test_a_process_that_fails_starts_again_and_one_that_has_left_does_not(device, every_s):
    """Also where asking the market takes longer than the pause between two questions."""
    device.keeper._every_s = every_s
    start = device.keeper._start
    statuses = [4, EXIT_OK]

    def start_and_end(folder: Path) -> FakeProcess:
        process = start(folder)
        if folder == device.day:
            process.returncode = statuses.pop(0)
        return process

    device.keeper._start = start_and_end
    day = {device.day: SERVES, device.night: RESTS}
    device.rounds = [day] * 8 + [{device.night: SERVES}] * 2
    device.keeper.run()
    assert device.names() == ["day", "day", "night"]


def test_a_supervisor_that_starts_again_waits_for_what_still_runs(device):
    """A process of before may hand over its jobs for a while; both would need the memory."""
    night = {device.day: RESTS, device.night: SERVES}
    device.rounds = [night, night]
    with lock_state_dir(StateDir(device.day)):
        device.keeper.run()
    assert device.names() == []
    device.stopping.clear()
    device.rounds = [night, night]
    device.keeper.run()
    assert device.names() == ["night"]


def credentials(url: str, **changed) -> Credentials:
    fields = {"market_url": url, "name": "box", "node_id": "node_1", "api_token": "node-token"}
    return Credentials(**fields | changed, heartbeat_every_s=0.2, base_models=())


def test_the_market_is_asked_with_the_nodes_own_token(market, tmp_path):
    save_credentials(StateDir(tmp_path), credentials(market.url))
    market.turn = RESTS
    assert ask_turn(tmp_path, is_up=True) == RESTS
    assert market.turn_requests[-1].is_up
    # A market of an earlier release, one that fails, one that sent the node away, none at all.
    for status in (404, 503):
        market.trouble = lambda _method, _path, status=status: status
        assert ask_turn(tmp_path, is_up=False) is None
    market.trouble = lambda _method, _path: 401
    with pytest.raises(SentAwayError):
        ask_turn(tmp_path, is_up=False)
    market.close()
    assert ask_turn(tmp_path, is_up=False) is None


def test_the_supervisor_runs_one_process_for_each_device(tmp_path, monkeypatch):
    program, starts = tmp_path / "program", tmp_path / "starts"
    program.write_text(f'#!/bin/sh\necho "$5" >> {starts}\nexit {EXIT_SENT_AWAY}\n')
    program.chmod(0o700)
    monkeypatch.setattr(machine, "sys", SimpleNamespace(executable=str(program)))
    monkeypatch.setattr(turns, "_LOOK_EVERY_S", 0.01)
    members = tuple(
        Member(name, name, "cuda", turns_with=first)
        for name, first in (("gpu0", ""), ("gpu0-2", "gpu0"), ("gpu1", ""))
    )
    for member in members:
        save_credentials(StateDir(tmp_path / member.folder), credentials("http://127.0.0.1:9"))
    said = {"gpu0": SERVES, "gpu0-2": RESTS}

    def ask(folder: Path, *, is_up: bool) -> DeviceTurn:
        # The first one's turn ends for good with its process.
        gone = starts.exists() and f"{folder.parent}/gpu0\n" in starts.read_text()
        return SERVES if gone and folder.name == "gpu0-2" and not is_up else said[folder.name]

    monkeypatch.setattr(turns, "ask_turn", ask)
    supervisor = Supervisor(MachineNodes(members), root=tmp_path, arguments=[], grace_s=1.0)
    assert supervisor.run() == EXIT_SENT_AWAY
    names = [Path(line).name for line in starts.read_text().split()]
    assert sorted(names) == ["gpu0", "gpu0-2", "gpu1"]
    assert names.index("gpu0") < names.index("gpu0-2")


def join_also(market, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_join(market, folder, "--also")


def run_join(market, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--url", market.url, "--state-dir", str(folder), "--token", "join-token"]
    command = [sys.executable, "-m", "workers", "join", *arguments, *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_single_nodes_directory_becomes_a_machines_with_all_its_files(tmp_path):
    state = StateDir(tmp_path)
    save_credentials(state, credentials("https://market.example"))
    (state.cache / "data").write_text("rows")
    first = MachineNodes((Member("box", "node0", "cuda"),))
    save_machine(state, first)
    # Twice, as after a crash between two moves.
    adopt_single_node(state, first)
    state.prepare()
    adopt_single_node(state, first)
    own = StateDir(tmp_path / "node0")
    assert load_credentials(own).name == "box"
    assert (own.cache / "data").read_text() == "rows"
    assert not state.credentials.exists()
    assert load_machine(state) == first
    assert has_joined(state)


def test_a_node_joins_beside_the_first_with_its_token_and_a_name_of_its_own(market, tmp_path):
    state = StateDir(tmp_path)
    save_credentials(state, credentials(market.url, device="cpu"))
    # What is tried is not the self-test: this says what it found.
    speed = SpeedMeasurement("tiny", 8, 64, 1, 10.0, 640.0, 0.01, 0.02)
    facts = NodeFacts(
        *(socket.gethostname(), "cpu", "cpu", 0, 4.0, 2, torch.__version__, PROTOCOL_VERSION),
        speeds=(speed,),
    )
    save_facts(tmp_path / "measured-cpu.json", facts)
    # An earlier market takes no notice of the neighbour: the node must not run beside it.
    assert "is of an earlier release" in join_also(market, tmp_path).stderr
    market.join_reply = replace(market.join_reply, shares_device=True)
    joined = join_also(market, tmp_path)
    assert "1 of 1 nodes of this machine have joined." in joined.stdout, joined.stderr
    assert [asked.name for asked in market.joins] == ["box-2", "box-2"]
    assert {asked.neighbour_token for asked in market.joins} == {"node-token"}
    found = load_machine(state)
    assert found is not None
    assert [(one.name, one.folder, one.turns_with) for one in found.members] == [
        ("box", "node0", ""),
        ("box-2", "node0-2", "node0"),
    ]
    assert load_credentials(StateDir(tmp_path / "node0-2")).name == "box-2"
    # The first one joins again beside the second; neither command lists a third one by itself.
    (tmp_path / "node0" / "node.json").unlink()
    run_join(market, tmp_path, "--gpus", "1")
    assert [asked.name for asked in market.joins] == ["box-2", "box-2", "box"]
    assert market.joins[-1].neighbour_token == "node-token"
    assert "the state directory of a machine" in run_join(market, tmp_path).stderr


def test_joining_also_needs_a_node_that_joined_and_no_process(market, tmp_path):
    refused = join_also(market, tmp_path)
    assert "has not joined a market" in refused.stderr
    state = StateDir(tmp_path)
    save_credentials(state, credentials(market.url))
    with lock_state_dir(state):
        assert "Another process runs this node already" in join_also(market, tmp_path).stderr
    assert market.joins == []
    with pytest.raises(NodeSettingsError):
        load_credentials(StateDir(tmp_path / "node0"))
