"""All GPUs of a machine under one command: planned apart, joined once each, kept running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workers.node import gpus, machine, update
from workers.node.credentials import NodeSettingsError, StateDir
from workers.node.gpus import Gpu, parse_core_list, parse_gpu_list, read_near_cores, share_cores
from workers.node.join import save_facts
from workers.node.machine import MachineNodes, Member, Supervisor, plan_machine
from workers.node.process import EXIT_OK, EXIT_SENT_AWAY, LOCK, lock_state_dir
from workers.protocol.messages import PROTOCOL_VERSION
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement

TWO = """\
GPU-11aa, NVIDIA A100-SXM4-80GB, 00000000:07:00.0
GPU-22bb, NVIDIA A100-SXM4-80GB, 00000000:B7:00.0
"""


def test_the_drivers_list_is_read_line_by_line():
    assert parse_gpu_list(TWO + "No devices were found\n") == [
        Gpu("GPU-11aa", "NVIDIA A100-SXM4-80GB", "00000000:07:00.0"),
        Gpu("GPU-22bb", "NVIDIA A100-SXM4-80GB", "00000000:B7:00.0"),
    ]


def test_the_cores_near_a_gpu_are_those_of_its_numa_node(tmp_path):
    folder = tmp_path / "0000:b7:00.0"
    folder.mkdir()
    (folder / "local_cpulist").write_text("0-2,8\n")
    far, near = parse_gpu_list(TWO)
    assert read_near_cores(near, pci=tmp_path) == {0, 1, 2, 8}
    assert read_near_cores(far, pci=tmp_path) == set()
    assert parse_core_list("5") == {5}


def test_cores_are_shared_among_the_gpus_near_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    low, high, anywhere = frozenset(range(4)), frozenset(range(4, 99)), frozenset[int]()
    assert share_cores([low, low, high]) == [(0, 2), (1, 3), (4, 5, 6, 7)]
    assert share_cores([anywhere, anywhere]) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    # Fewer cores than processes: the system decides.
    assert share_cores([low] * 9) == [()] * 9


def test_each_gpu_has_a_name_a_folder_and_a_view_of_its_own(monkeypatch):
    monkeypatch.setattr(machine, "list_gpus", lambda: parse_gpu_list(TWO))
    members = plan_machine(name="box", gpus="all", device=None).members
    assert [(m.name, m.folder, m.device, m.environment) for m in members] == [
        ("box-gpu0", "gpu0", "cuda", {"CUDA_VISIBLE_DEVICES": "GPU-11aa"}),
        ("box-gpu1", "gpu1", "cuda", {"CUDA_VISIBLE_DEVICES": "GPU-22bb"}),
    ]
    assert len(plan_machine(name="box", gpus="1", device=None).members) == 1
    assert [m.name for m in plan_machine(name="box", gpus="1-1", device=None).members] == [
        "box-gpu1"
    ]
    for wrong in ("3", "0", "-1", "some", "0-2", "1-0"):
        with pytest.raises(NodeSettingsError):
            plan_machine(name="box", gpus=wrong, device=None)


def test_gpus_of_a_group_are_one_node_that_sees_all_of_them(monkeypatch):
    alike = [Gpu(f"GPU-{index}", "NVIDIA A40", f"00000000:0{index}:00.0") for index in range(4)]
    monkeypatch.setattr(machine, "list_gpus", lambda: alike)
    members = plan_machine(name="box", gpus="0-3", device=None, group=2).members
    assert [(m.name, m.folder, m.device, m.model, m.environment) for m in members] == [
        (
            f"box-group{n}",
            f"group{n}",
            "cuda:0,cuda:1",
            "2x NVIDIA A40",
            {"CUDA_VISIBLE_DEVICES": of},
        )
        for n, of in enumerate(("GPU-0,GPU-1", "GPU-2,GPU-3"))
    ]
    with pytest.raises(NodeSettingsError, match="3 GPUs cannot be divided into groups of 2"):
        plan_machine(name="box", gpus="3", device=None, group=2)
    alike[1] = Gpu("GPU-1", "NVIDIA A100", alike[1].bus_id)
    with pytest.raises(NodeSettingsError, match="of one model, not of NVIDIA A100 and NVIDIA A40"):
        plan_machine(name="box", gpus="all", device=None, group=4)


def test_a_machine_whose_driver_cannot_be_asked_says_why(monkeypatch):
    monkeypatch.setattr(gpus, "_QUERY", ("no-such-command",))
    monkeypatch.setattr(gpus, "read_driver_version", lambda: 470)
    with pytest.raises(NodeSettingsError, match="its driver 470 is too old"):
        gpus.list_gpus()


def join_two(market, folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = ["--url", market.url, "--state-dir", str(folder), "--token", "join-token"]
    more = ["--gpus", "2", "--device", "cpu", "--name", "box"]
    more += ["--measured", str(folder / "measured.json")]
    command = [sys.executable, "-m", "workers", "join", *arguments, *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_machine_joins_each_node_once_and_measures_once(market, tmp_path):
    # What is tried is not the self-test: this says what it found.
    speed = SpeedMeasurement("tiny", 8, 64, 1, 10.0, 640.0, 0.01, 0.02)
    facts = NodeFacts(
        *(socket.gethostname(), "cpu", "cpu", 0, 4.0, 2, torch.__version__, PROTOCOL_VERSION),
        speeds=(speed,),
    )
    save_facts(tmp_path / "measured.json", facts)
    first = join_two(market, tmp_path)
    assert first.returncode == 0, first.stderr
    assert "2 of 2 nodes of this machine have joined." in first.stdout
    assert [request.name for request in market.joins] == ["box-0", "box-1"]
    assert market.joins[0].facts == market.joins[1].facts
    folders = [tmp_path / "node0", tmp_path / "node1"]
    kept = [(folder / "node.json").read_bytes() for folder in folders]
    # The same command again brings in what is missing, which is nothing.
    again = join_two(market, tmp_path)
    assert "box-0 has joined already." in again.stdout
    assert len(market.joins) == 2
    assert [(folder / "node.json").read_bytes() for folder in folders] == kept
    # A machine's directory is no single node's, nor the other way.
    alone = subprocess.run(
        [
            *(sys.executable, "-m", "workers", "join", "--url", market.url, "--gpus", "1"),
            *("--device", "cpu", "--token", "join-token", "--state-dir", str(folders[0])),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is the state directory of a single node" in alone.stderr


class Program:
    """Stands where ``python -m workers`` would: notes each start, and ends as it is told."""

    def __init__(self, folder: Path, statuses: str) -> None:
        self.log = folder / "starts"
        self.path = folder / "program"
        self.path.write_text(
            "#!/bin/sh\n"
            f'echo "$5 $CUDA_VISIBLE_DEVICES" >> {self.log}\n'
            f'count=$(grep -c "$5" {self.log})\n'
            f'status=$(echo "{statuses}" | cut -d" " -f"$count")\n'
            '[ "$status" = stay ] && { trap "exit 0" TERM; while :; do sleep 0.05; done; }\n'
            'exit "$status"\n'
        )
        self.path.chmod(0o700)


def supervise(tmp_path, monkeypatch, statuses: str) -> tuple[Supervisor, Program]:
    program = Program(tmp_path, statuses)
    monkeypatch.setattr(machine, "sys", SimpleNamespace(executable=str(program.path)))
    monkeypatch.setattr(machine, "FIRST_PAUSE_S", 0.01)
    members = tuple(
        Member(f"box-{n}", f"gpu{n}", "cuda", environment={"CUDA_VISIBLE_DEVICES": f"GPU-{n}"})
        for n in (0, 1)
    )
    for member in members:
        (tmp_path / member.folder).mkdir()
        (tmp_path / member.folder / "node.json").touch()
    # One that never joined is left alone.
    members += (Member("box-2", "gpu2", "cuda"),)
    return Supervisor(MachineNodes(members), root=tmp_path, arguments=[], grace_s=5.0), program


def test_a_node_that_fails_starts_again_and_one_that_was_sent_away_does_not(tmp_path, monkeypatch):
    supervisor, program = supervise(tmp_path, monkeypatch, f"4 1 {EXIT_SENT_AWAY}")
    assert supervisor.run() == EXIT_SENT_AWAY
    starts = sorted(program.log.read_text().splitlines())
    assert starts == sorted(f"{tmp_path}/gpu{n} GPU-{n}" for n in (0, 1) for _ in range(3))


@pytest.mark.parametrize(
    ("number", "updates"), [(signal.SIGTERM, False), (signal.SIGHUP, True)], ids=lambda v: str(v)
)
def test_a_supervisor_that_is_asked_to_stop_has_its_nodes_hand_over(
    tmp_path, monkeypatch, number, updates
):
    supervisor, _ = supervise(tmp_path, monkeypatch, "stay")
    original = supervisor._run_once

    def run_once(member: Member) -> int:
        # Both are running by the time the second one starts.
        if member.folder == "gpu1":
            os.kill(os.getpid(), number)
        return original(member)

    monkeypatch.setattr(supervisor, "_run_once", run_once)
    assert supervisor.run() == EXIT_OK
    assert supervisor.update_asked is updates


def test_an_update_is_asked_of_the_process_that_holds_the_directory(tmp_path, monkeypatch, capsys):
    state = StateDir(tmp_path)
    state.prepare()
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(update.os, "kill", lambda pid, number: asked.append((pid, number)))
    with lock_state_dir(state):
        assert update.main(["--state-dir", str(tmp_path)]) == EXIT_OK
    assert asked == [(os.getpid(), signal.SIGHUP)]
    # The file stays when its process is gone, and says nothing then.
    assert (tmp_path / LOCK).exists()
    assert update.find_running(state) is None
